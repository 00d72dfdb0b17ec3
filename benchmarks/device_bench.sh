#!/bin/bash
# Everything about kernels and bench that needs a GPU, in stages of under ten minutes: build, tests, bench, fused, sanitize;
# nvfp4, nvfp4_bench, nvfp4_ncu, nvfp4_sanitize; ssm, ssm_bench, ssm_sanitize.
#
#   bash benchmarks/device_bench.sh [OUT_FOLDER] [STAGE...]     (default: ./out, all stages)
#
# Writes JSON results and one log to OUT_FOLDER, prints a short table last, and exits with 1 if a stage failed. Needs python3 with torch for CUDA, nvcc and
# ninja; scipy, typer, rich and pytest. Reads clocks, never sets them.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-out}
mkdir -p "$out"
shift || true
stages=${*:-build tests bench fused sanitize nvfp4 nvfp4_bench nvfp4_ncu nvfp4_sanitize ssm ssm_bench ssm_sanitize}
export PYTHONPATH=.:kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 COLUMNS=110
geometry=${GLQPROF_GEOMETRY:-cascade2-30b} layers=${GLQPROF_LAYERS:-23} rows=${GLQPROF_ROWS:-1,2,4}
declare -A status

build() { # all extensions at once, so that no later stage pays for the compiler
  local group pids=() failed=0
  for group in glq-moe nvfp4-moe ssm-step; do
    python3 - "$group" <<'P' &
import sys, time, torch
from glqprof.bench.discovery import load_bundled
registry, problems = load_bundled()
assert not problems, problems
group = registry.groups[sys.argv[1]]
start = time.time()
workload = group.workload(group.cpu_geometry, 1, 0, "cuda", {})
for variant in registry.of_group(group.name):
    if "cuda" in variant.devices and "nvcc" in variant.needs:
        variant.build(workload)
print(f"{group.name} built in {time.time() - start:.0f} s on {torch.cuda.get_device_name()}")
P
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
  return $failed
}

tests() { GLQPROF_GPU_RECORD=$out/gpu-test.json python3 -m pytest tests/gpu -q -p no:cacheprovider --durations=10; }

bench() { # exit status 1 is right here: v3b-fp32act does not keep its contract
  python3 -m glqprof bench glq-moe --variants v0.2.12,v3a,v3b,v3b-fp32act --geometry "$geometry" --layers "$layers" \
    --rows "$rows" --format json > "$out/bench-glq-moe.json" || [ $? -eq 1 ]
}

fused() { # against v3b and both bf16 yardsticks, interleaved
  python3 -m glqprof bench glq-moe --variants v3b,fused,fused-fast,bf16,bf16-loop --baseline v3b --geometry "$geometry" \
    --layers "$layers" --rows "${GLQPROF_FUSED_ROWS:-1,2,4,8}" --format json > "$out/bench-fused.json" || [ $? -eq 1 ]
}

sanitize() { # the kernels' tests alone: the bench's own use CUPTI, which cannot run beside the sanitizer
  local tool word failed=0 only=()
  compute-sanitizer --help | grep -q -- --kernel-regex && only=(--kernel-regex kns=glq_) # torch's kernels are not ours
  for tool in memcheck racecheck; do
    GLQPROF_GPU_RECORD=$out/gpu-test-$tool.json GLQPROF_SANITIZER=$tool PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
      timeout 280 compute-sanitizer --tool "$tool" "${only[@]}" --error-exitcode 9 --print-limit 20 \
      python3 -m pytest tests/gpu -q -x -p no:cacheprovider --ignore-glob='*test_bench_*' \
      -k "${GLQPROF_SANITIZE_TESTS:-test_recorded_inputs or test_adversarial}" && word=clean || { word=FAILED; failed=1; }
    echo "compute-sanitizer $tool: $word"
  done
  return $failed
}

nvfp4() { python3 kernels/tools/device_nvfp4.py --out "$out" check time streams; }

nvfp4_bench() {
  python3 -m glqprof bench nvfp4-moe --geometry glm-5.3-flash --layers 2 --rows "${GLQPROF_NVFP4_ROWS:-1}" \
    --variants base-regs,base-ring,base-deep,half-regs,half-ring,half-deep,bf16 --format json \
    > "$out/bench-nvfp4-moe.json" || [ $? -eq 1 ]
}

nvfp4_ncu() { # base-regs, base-ring and base-deep, without overlap: gate-up and down of each
  ncu --clock-control none -k 'regex:nvfp4_(gate_up|down)' --section SpeedOfLight --section LaunchStats \
    --section Occupancy --section WarpStateStats --section SchedulerStats --section MemoryWorkloadAnalysis \
    --section MemoryWorkloadAnalysis_Tables --section ComputeWorkloadAnalysis --section InstructionStats \
    -f -o "$out/nvfp4" python3 kernels/tools/device_nvfp4.py --out "$out" ncu
  ncu --import "$out/nvfp4.ncu-rep" --csv --page raw --print-units base > "$out/nvfp4-raw.csv"
  rm "$out/nvfp4.ncu-rep"
}

nvfp4_sanitize() {
  local tool failed=0
  for tool in memcheck racecheck; do
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 280 compute-sanitizer --tool "$tool" --kernel-regex kns=nvfp4_ \
      --error-exitcode 9 --print-limit 20 python3 kernels/tools/device_nvfp4.py --out "$out" sanitize \
      && echo "compute-sanitizer $tool: clean" || { echo "compute-sanitizer $tool: FAILED"; failed=1; }
  done
  return $failed
}

ssm() { python3 kernels/tools/device_ssm.py --out "$out"; }

ssm_bench() {
  python3 -m glqprof bench ssm-step --geometry cascade2-30b --rows "${GLQPROF_SSM_ROWS:-1,2,4}" --layers "$layers" \
    --format json > "$out/bench-ssm-step.json" || [ $? -eq 1 ]
}

ssm_sanitize() {
  local tool failed=0
  for tool in memcheck racecheck; do
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 timeout 280 compute-sanitizer --tool "$tool" --kernel-regex kns=ssm_ \
      --error-exitcode 9 --print-limit 20 python3 kernels/tools/device_ssm.py --out "$out" sanitize \
      && echo "compute-sanitizer $tool: clean" || { echo "compute-sanitizer $tool: FAILED"; failed=1; }
  done
  return $failed
}

bad=0
for stage in $stages; do
  echo "== $stage" | tee -a "$out/log.txt"
  start=$SECONDS
  "$stage" 2>&1 | tee -a "$out/log.txt" | tail -n "${GLQPROF_TAIL:-25}"
  code=${PIPESTATUS[0]}
  status[$stage]="exit $code, $((SECONDS - start)) s"
  [ "$code" -eq 0 ] || bad=1
done

python3 - "$out" <<'P'
import json, sys
from pathlib import Path
for path in sorted(Path(sys.argv[1]).glob("bench-*.json")):
    try:
        result = json.loads(path.read_text())
    except ValueError:
        print(f"{path.name}: no result")
        continue
    noise = result["noise_floor_pct"]
    print(f"\n{result['device']['name']}, {result['geometry']}, {result['layers']} layers, noise floor {noise} %")
    print(f"{'variant':12} rows {'eager ms':>9} {'graph ms':>9} {'ratio':>6} {'bits':>8} {'launch':>6} {'waits':>6} xfloor")
    for v in result["variants"]:
        eager, graph = v["timings"]["eager"], v["timings"]["graph"]
        ms = [f"{t['median_us'] / 1000:9.3f}" if t else f"{'-':>9}" for t in (eager, graph)]
        ratio = f"{eager['ratio']:6.3f}" if eager and eager["ratio"] else f"{'-':>6}"
        bits = "same" if v["identical"] else f"{100 * v['differing']['share']:.1f} %" if v["differing"] else "-"
        floor = f"{v['floor_ratio']:.1f}" if v["floor_ratio"] else "-"
        print(f"{v['name']:12} {v['rows']:4} {ms[0]} {ms[1]} {ratio} {bits:>8} {v['launches']!s:>6} {v['syncs']!s:>6} {floor}")
        for reason in v["reasons"]:
            print(f"    {reason['code']}: {reason['detail']}"[:150])
    for warning in result["warnings"]:
        print(f"  warning {warning['code']}: {warning['detail']}"[:150])
P
for stage in $stages; do echo "$stage: ${status[$stage]}"; done
exit $bad
