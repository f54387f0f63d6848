#!/usr/bin/env bash
# Everything that needs a CUDA device, in one go of less than 8 minutes: the GPU tests, the smoke
# run, short real runs at full scale, a trace of the allocator, and the GPU measured for simulation.
# Ends with a table.
#   scripts/gpu_check.sh [OUT]      results go to OUT (default: results/gpu-check)
# PYTHON names the interpreter (default: .venv/bin/python if there is one, else python3).
set -u
cd "$(dirname "$0")/.." || exit 1
out=${1:-results/gpu-check}
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  [ -x .venv/bin/python ] && python=.venv/bin/python
fi
if ! "$python" -c "import mimose_bench.cli" 2>/dev/null; then
  # Where nothing can be installed, the folder itself can stand in for the package.
  link=$(mktemp -d)
  trap 'rm -rf "$link"' EXIT
  ln -s "$PWD" "$link/mimose_bench"
  export PYTHONPATH="$link:$PWD${PYTHONPATH:+:$PYTHONPATH}"
fi
bench() { "$python" -m mimose_bench.cli "$@"; }
mkdir -p "$out"
failed=0
step() {
  local name=$1 limit=$2
  shift 2
  # SECONDS is bash's own count since the script began; the table needs the last few.
  local left=$((450 - SECONDS))
  if [ "$left" -lt 1 ]; then
    echo "== $name LEFT OUT: no time left"
    failed=1
    return
  fi
  echo "== $name"
  timeout "$((limit < left ? limit : left))" "$@" || { echo "== $name FAILED ($?)"; failed=1; }
}
export -f bench
export python

"$python" -c "import torch; assert torch.cuda.is_available(); print(torch.cuda.get_device_name(), torch.__version__)" \
  || { echo "no CUDA device here"; exit 1; }
step "tests that need a GPU" 90 "$python" -m pytest -q -m gpu
step "smoke" 120 bash -c 'bench smoke --device cuda --out "$0"' "$out/smoke"
common="--task qa-bert --device cuda --data synthetic --steps 60 --seed 11"
# The baseline's expected end at 6 GB is out of memory: exit code 3 is a result.
step "baseline, no limit" 60 bash -c "bench run $common --planner baseline --budget none --out \"\$0\"" "$out/runs"
step "baseline at 6 GB" 60 bash -c "bench run $common --planner baseline --budget 6GB --out \"\$0\" || [ \$? -eq 3 ]" "$out/runs"
step "full at 6 GB" 60 bash -c "bench run $common --planner full --budget 6GB --out \"\$0\"" "$out/runs"
step "mimose at 6 GB" 60 bash -c "bench run $common --planner mimose --budget 6GB --out \"\$0\"" "$out/runs"
for planner in sublinear rotor checkmate; do
  step "$planner at 6 GB" 45 bash -c "bench run $common --planner $planner --budget 6GB --out \"\$0\"" "$out/runs"
done
step "allocator traces" 90 "$python" scripts/gpu_trace.py "$out/traces"
step "calibrate" 45 bash -c 'bench calibrate --out "$0"' "$out/gpu.json"
echo "== table"
# Oldest first: the run without a limit is the reference.
# shellcheck disable=SC2046
bench compare $(ls -dtr "$out"/runs/*/) || failed=1
exit $failed
