#!/bin/bash
# Captures the bundled toy decode with each of the four tools on a GPU machine, and holds what they saw together.
#
#   bash benchmarks/device_capture.sh [OUT_FOLDER] [pack]     (default: ./out)
#
# Leaves OUT_FOLDER/toy-<tool> (scrubbed), log.txt and table.txt; with "pack", captures.tgz instead of the folders.
# Uses what is there of: .nsys/activate (an nsys whose importer works) and .wheels/*.whl (packages that python3 lacks).
# Exits with 1 when a tool left no capture, a capture is over 2 MB, or the timelines disagree. Takes about three minutes.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
[ -f .nsys/activate ] && source .nsys/activate
if compgen -G ".wheels/*.whl" > /dev/null; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/glqprof-site .wheels/*.whl \
    || exit 1
  export PYTHONPATH=/tmp/glqprof-site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=.:kernels${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 COLUMNS=110
toy=(python3 -m glqprof.workloads.toy_decode --tokens "${GLQPROF_TOKENS:-32}")
declare -A options=([ncu]="--count ${GLQPROF_NCU_COUNT:-12}")
bad=0

python3 -m glqprof doctor 2>&1 | tee "$out/log.txt"
for tool in ${GLQPROF_TOOLS:-nsys cupti torch ncu}; do
  echo "== $tool" | tee -a "$out/log.txt"
  start=$SECONDS
  rm -rf "$out/toy-$tool"
  # shellcheck disable=SC2086
  python3 -m glqprof capture "$tool" -o "$out/toy-$tool" --timeout 120 ${options[$tool]:-} -- "${toy[@]}" 2>&1 \
    | tee -a "$out/log.txt" | tail -n 12
  code=${PIPESTATUS[0]}
  echo "$tool: exit $code, $((SECONDS - start)) s" | tee -a "$out/log.txt"
  [ "$code" -eq 0 ] || bad=1
  # What a failed capture leaves is not scrubbed: only its reason comes along.
  if [ -d "$out/toy-$tool/raw" ]; then ls -l "$out/toy-$tool/raw" | tee -a "$out/log.txt"; rm -rf "$out/toy-$tool/raw"; fi
done

python3 benchmarks/capture_table.py "$out" 2>&1 | tee "$out/table.txt"
[ "${PIPESTATUS[0]}" -eq 0 ] || bad=1
if [ "${2:-}" = pack ]; then
  tar -C "$out" -czf "$out/captures.tgz" $(cd "$out" && ls -d toy-*/) && rm -rf "$out"/toy-*
fi
exit $bad
