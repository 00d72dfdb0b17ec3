#!/bin/bash
# The decode workloads on a GPU machine: GPU tests, untraced decodes of each variant, nsys captures. No stage over ten minutes.
#
#   bash benchmarks/device_decode.sh [OUT_FOLDER] [STAGE...]     (default: ./out; stages: build tests decode captures)
#
# Leaves OUT_FOLDER/decode-<variant>.json, OUT_FOLDER/cascade2-<variant> (scrubbed captures), log.txt; prints one line a variant last.
# GLQPROF_VARIANTS, GLQPROF_LAYERS, GLQPROF_PROMPT, GLQPROF_TOKENS choose less. Uses .nsys/activate and .wheels/*.whl where they are there.
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
variants=${GLQPROF_VARIANTS:-v0.2.12 v3a v3b fused fused-fast bf16 transformers}
sizes=(--workload cascade2-30b --prompt "${GLQPROF_PROMPT:-1024}")
[ -n "${GLQPROF_LAYERS:-}" ] && sizes+=(--layers "$GLQPROF_LAYERS")
bad=0

build() { # both extensions, so that no later stage pays for the compiler
  python3 -c '
from glqprof.workloads.nemotron_h.experts import prepare
from glqprof.workloads.nemotron_h.variants import VARIANTS
for name in ("fused", "nvfp4-base-ring"):
    prepare(VARIANTS[name], "cuda")
'
}

tests() {
  GLQPROF_GPU_RECORD="$out/gpu-test-decode.json" python3 -m pytest -q tests/gpu/test_decode.py
}

decode() {
  local failed=0
  for variant in $variants; do
    python3 -m glqprof decode "${sizes[@]}" --variant "$variant" --tokens "${GLQPROF_TOKENS:-128}" \
      --format json > "$out/decode-$variant.json" || { failed=1; rm -f "$out/decode-$variant.json"; }
  done
  return $failed
}

captures() {
  local failed=0
  for variant in $variants; do
    rm -rf "$out/cascade2-$variant"
    python3 -m glqprof capture nsys -o "$out/cascade2-$variant" --timeout 200 --workload cascade2-30b --variant "$variant" \
      -- "${sizes[@]:2}" || failed=1
    # What a failed capture leaves is not scrubbed: only its reason comes along.
    rm -rf "$out/cascade2-$variant/raw"
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
python3 - "$out" <<'P'
import json, pathlib, sys
for path in sorted(pathlib.Path(sys.argv[1]).glob("decode-*.json")):
    r = json.loads(path.read_text())
    print(f"{r['variant']:16} {r['tok_s']:8.2f} tok/s {r['ms_per_token']:8.3f} ms  p90 {r['token_ms_spread']['p90']:8.3f}"
          f"  load {r['load_s']:5.1f} s  prompt {r['prefill_ms']:8.0f} ms  {(r['peak_gpu_bytes'] or 0) / 1e9:5.1f} GB"
          f"  {r['token_sha'][:12]}  {'; '.join(r['warnings'])}")
P
exit $bad
