#!/bin/bash
# Profile the project's own GLQ variants with ncu on the machine that has the GPU, and bring small reports back.
#
#   bash benchmarks/ncu_device.sh OUT        (about 5 minutes on an H200, 80 s of them the build of the extension)
#
# Writes eight files into OUT:
#   session.ncu-rep.gz, session-raw.csv, session-details.csv   one session, few sections: v3b, 6 launches; the test
#       tests/ncu/test_one_session.py reads all three (put them into tests/data/ncu/)
#   v0.2.12-raw.csv, v3b-raw.csv    one expert each, the sections that `glqprof ncu` reads: the before/after pair
#   full-raw.csv                    v3b, --set full, 3 launches: what a whole capture looks like
#   chase.csv                       latency of a dependent load from L2 and DRAM, cycles and ns
#   log.txt                         what ncu and the programs printed
# Clocks are left alone. Nothing is taken from the environment but where CUDA lies.
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")/.."
export PYTHONPATH=.:kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
log=$out/log.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "[$SECONDS s] $*" | tee -a "$log"; }

few=(--section SpeedOfLight --section LaunchStats --section Occupancy --section WarpStateStats --section SchedulerStats)
read_sections=("${few[@]}" --section SpeedOfLight_RooflineChart --section MemoryWorkloadAnalysis
  --section MemoryWorkloadAnalysis_Tables --section ComputeWorkloadAnalysis --section InstructionStats)

profile() {  # NAME VARIANT COUNT SECTIONS…
  local name=$1 variant=$2 count=$3
  shift 3
  say "ncu $name: $variant, $count launches"
  ncu --clock-control none --profile-from-start off -k regex:glq_ -c "$count" "$@" -f -o "$work/$name" \
    python3 benchmarks/ncu_target.py --variant "$variant" >>"$log" 2>&1
}

page() {  # NAME PAGE FILE: rows of the table alone
  ncu --import "$work/$1.ncu-rep" --csv --page "$2" --print-units base >"$out/$3"
}

say "$(ncu --version | tail -1)"
say "build and warm up"
python3 benchmarks/ncu_target.py --variant v3b >>"$log" 2>&1
profile session v3b 6 "${few[@]}"
page session raw session-raw.csv
page session details session-details.csv
gzip -9nc "$work/session.ncu-rep" >"$out/session.ncu-rep.gz"
profile v0.2.12 v0.2.12 12 "${read_sections[@]}"
page v0.2.12 raw v0.2.12-raw.csv
profile v3b v3b 9 "${read_sections[@]}"
page v3b raw v3b-raw.csv
profile full v3b 3 --set full
page full raw full-raw.csv
say "pointer chase"
if nvcc -O3 -arch=native -o "$work/chase" benchmarks/pointer_chase.cu >>"$log" 2>&1; then
  "$work/chase" | tee "$out/chase.csv" | tee -a "$log"
else
  say "pointer_chase.cu did not build: no chase.csv"
fi
say "done"
ls -la "$out"
