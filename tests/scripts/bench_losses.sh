#!/usr/bin/env bash
# Tests that the benchmarks stop if the losses of Tessera and PyTorch differ in value or number, or
# if a loss is NaN. Small scripts stand in for Tessera's programs and for Python with PyTorch. Also
# tests that bench/tables.py sets up MPI, and which flags a peer refuses.
set -euo pipefail
cd "$TESSERA_SOURCE_DIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
program() { printf '#!/bin/sh\n%s\n' "$2" > "$work/$1"; chmod +x "$work/$1"; }
# The benchmarks also read these times and sizes, but the test does not depend on them.
result='"median_ms": 1, "cpu_ms": 1, "sent": 1, "torch": "2"'
ours="echo '{\"losses\": [1.5, 2], $result}'"
program train_recommender exit
program bench_rating_split exit
program bench_recommender_step "$ours"
program bench_table_step "$ours"
program mpirun "[ \"\$OMPI_MCA_rmaps_base_oversubscribe\" = 1 ] || exit 1; $ours"
export PATH=$work:$PATH
unset OMPI_MCA_rmaps_base_oversubscribe

compared() {
  bench/tables.py --bin "$work" --python "$work/python" > "$work/output" 2>&1 &&
    bench/recommenders.py --bin "$work" --python "$work/python" speed >> "$work/output" 2>&1
}
# These PyTorch programs must call before_torch, so that malloc keeps freed memory. Otherwise page
# faults would slow PyTorch but not Tessera, and the comparison would be unfair.
for peer in gpt_step sharded_step checkpoint recommender_step resnet_step table_step conv; do
  grep -q before_torch "bench/peers/$peer.py" || fail "$peer.py does not call before_torch"
done
# gpt_memory.py refuses the flags of gpt_step.py that it would ignore.
for flag in "--dtype bf16" "--weights x" "--data x" "--steps 3" "--warmup 1" "--malloc plain" --json
do
  # $flag is unquoted, because a flag and its value must be two words.
  if python3 bench/peers/gpt_memory.py $flag > "$work/output" 2>&1 ||
    ! grep -q "unrecognized arguments: $flag" "$work/output"; then
    fail "gpt_memory.py $flag: $(< "$work/output")"
  fi
done
program python "echo '{\"losses\": [1.5, 2.0001], $result}'"
compared || fail "equal losses are refused: $(< "$work/output")"
for losses in "1.5, 2.1" "1.5, NaN" "NaN, 2" "1.5" "1.5, 2, 2.5" ""; do
  program python "echo '{\"losses\": [$losses], $result}'"
  for script in tables.py "recommenders.py speed"; do
    # $script is unquoted, because "recommenders.py speed" must become two words.
    if bench/$script --bin "$work" --python "$work/python" > "$work/output" 2>&1; then
      fail "$script: compared with losses of $losses: $(< "$work/output")"
    fi
    grep -q "losses differ: " "$work/output" || fail "$script, $losses: $(< "$work/output")"
  done
done
PYTHONPATH=bench python3 -c '
import compare
ours, nan = [{"losses": [1.5, 2]}], [{"losses": [1.5, float("nan")]}]
compare.require_same_losses("equal", ours, ours, 1e-4)
short = [{"losses": [1.5]}]
for a, b in ((ours, nan), (nan, ours), (nan, nan), (ours, short), (short, ours)):
    try:
        compare.require_same_losses("different", a, b, 1e-4)
    except SystemExit:
        continue
    raise AssertionError(f"compared: {a}, {b}")'
