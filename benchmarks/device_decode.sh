#!/bin/bash
# The decode workloads on a GPU machine: GPU tests, untraced decodes of each path, nsys captures. No stage over ten minutes.
#
#   bash benchmarks/device_decode.sh [OUT_FOLDER] [STAGE...]     (default: ./out; stages: build tests decode captures)
#
# Leaves OUT_FOLDER/decode-<path>.json (":" of a path is "+"), OUT_FOLDER/cascade2-<path> (scrubbed captures; "-"), log.txt.
# Untraced paths with a graph or glqprof's loop run in one process, one model a variant; eager ones in one each. GLQPROF_PATHS, GLQPROF_LAYERS, GLQPROF_PROMPT, GLQPROF_TOKENS
# choose less; GLQPROF_CAPTURE_PATHS and GLQPROF_CAPTURE_OPTIONS (such as --no-untraced) are of the captures,
# GLQPROF_TESTS of the tests. Uses .nsys/activate and .wheels/*.whl where they are there.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
shift || true
stages=${*:-build tests decode captures}
[ -f .nsys/activate ] && source .nsys/activate
if compgen -G ".wheels/*.whl" > /dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/glqprof-site .wheels/*.whl \
    || exit 1
  export PYTHONPATH=/tmp/glqprof-site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=.:kernels:tests${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 COLUMNS=110
paths=${GLQPROF_PATHS:-v0.2.12:prompt=fused v3a:prompt=fused v3b:prompt=fused fused fused:graph fused:glqprof \
fused:glqprof:graph fused-fast:glqprof:graph bf16 bf16:graph bf16:glqprof:graph}
captured=${GLQPROF_CAPTURE_PATHS:-$paths}
sizes=(--prompt "${GLQPROF_PROMPT:-1024}")
[ -n "${GLQPROF_LAYERS:-}" ] && sizes+=(--layers "$GLQPROF_LAYERS")
bad=0

build() { # every extension, so that no later stage pays for the compiler
  python3 -c '
from glqprof.workloads.nemotron_h.experts import prepare
from glqprof.workloads.nemotron_h.paths import How
from glqprof.workloads.nemotron_h.runs import prepare_loop
from glqprof.workloads.nemotron_h.variants import VARIANTS
for name in ("fused", "nvfp4-base-ring"):
    prepare(VARIANTS[name], "cuda")
prepare_loop(How(loop="glqprof", ssm="fused"), "cuda")
'
}

tests() {
  # shellcheck disable=SC2086 # several files
  GLQPROF_GPU_RECORD="$out/gpu-test-decode.json" python3 -m pytest -q \
    ${GLQPROF_TESTS:-tests/gpu/test_decode.py tests/gpu/test_graph_decode.py}
}

decode() {
  local code=0 path together=()
  for path in $paths; do
    case $path in
      *:graph* | *:glqprof*) together+=("$path") ;;
      # A process of its own: cuDNN's plans for each length of the cache, which one eager path builds, serve the next.
      *) decode_in_one "$path" || code=1 ;;
    esac
  done
  if [ ${#together[@]} -gt 0 ]; then decode_in_one "${together[@]}" || code=1; fi
  return "$code"
}

decode_in_one() {
  local code
  for _ in 1 2 3 4; do # again for what is left where a path took the GPU's context with it
    python3 benchmarks/decode_paths.py "$out" "$@" "${sizes[@]}" --tokens "${GLQPROF_TOKENS:-128}"
    code=$?
    [ "$code" -eq 3 ] || return "$code"
  done
  return "$code"
}

captures() {
  local failed=0 folder path
  for path in $captured; do
    folder=$out/cascade2-${path//[:=]/-}
    rm -rf "$folder"
    # shellcheck disable=SC2046,SC2086 # options, none of which has a space
    python3 -m glqprof capture nsys -o "$folder" --timeout 200 ${GLQPROF_CAPTURE_OPTIONS:-} --workload cascade2-30b \
      -- $(python3 benchmarks/decode_paths.py --command "$path") "${sizes[@]}" || failed=1
    # What a failed capture leaves is not scrubbed: only its reason comes along.
    rm -rf "$folder/raw"
  done
  return $failed
}

for stage in $stages; do
  echo "== $stage" | tee -a "$out/log.txt"
  start=$SECONDS
  "$stage" 2>&1 | tee -a "$out/log.txt" | tail -n 40
  code=${PIPESTATUS[0]}
  echo "$stage: exit $code, $((SECONDS - start)) s" | tee -a "$out/log.txt"
  [ "$code" -eq 0 ] || bad=1
done
exit $bad
