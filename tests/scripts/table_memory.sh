#!/usr/bin/env bash
# Tests that a table may be larger than the memory of any rank. Four ranks at stage 3 train a table
# of 512 MB with row-wise Adagrad. Each rank may use at most 256 MiB (RLIMIT_DATA). The losses must
# equal, bit for bit, those of one rank without a limit. One rank alone must fail under the limit.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
if [[ ! -x $TESSERA_BIN/bench_table_step ]]; then
  echo "skipped: built without TESSERA_BENCH"
  exit 77
fi
table() { "$TESSERA_BIN/bench_table_step" --rows 2000000 --batch 512 --steps 3 --warmup 0 \
  --micro-batches 4 --stage 3 --rowwise "$@"; }
export -f table
losses() { sed 's/.*"losses"://' "$1"; }

table > "$work/one" 2> "$work/errors" || fail "one rank: $(cat "$work/errors")"
(
  ulimit -d 262144
  mpirun --oversubscribe -n 4 bash -c table
) > "$work/four" 2> "$work/errors" || fail "four ranks: $(cat "$work/four" "$work/errors")"
[[ $(losses "$work/one") == "$(losses "$work/four")" ]] ||
  fail "$(cat "$work/one"), four ranks: $(cat "$work/four")"
if (ulimit -d 262144; table) > "$work/limited" 2>&1; then
  fail "one rank trained under the limit, which shows nothing: $(cat "$work/limited")"
fi
echo "passed: $(cat "$work/four")"
