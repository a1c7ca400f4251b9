#!/usr/bin/env bash
# Tests that bench/recommenders.py refuses to run without its data or without the libraries that it
# compares with. Also tests that bench_rating_split writes every rating once. With --split last,
# bench_rating_split must hold out each user's last rating. With --split fold, bench_rating_split
# must hold out each rating in exactly one fold.
set -euo pipefail
cd "$TESSERA_SOURCE_DIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
refused() {  # PATTERN ARGUMENT...: recommenders.py must fail with an error that matches PATTERN
  if bench/recommenders.py "${@:2}" > "$work/output" 2>&1; then fail "not refused: ${*:2}"; fi
  grep -q -- "$1" "$work/output" || fail "$(cat "$work/output")"
}

if [[ ! -x $TESSERA_BIN/bench_rating_split ]]; then
  echo "skipped: built without TESSERA_BENCH"
  exit 77
fi
refused "has no train_recommender" --bin "$work"
refused "unknown questions: prices" --bin "$TESSERA_BIN" prices
refused "data is missing" --bin "$TESSERA_BIN" ratings
printf '#!/bin/sh\nexit 1\n' > "$work/python"
chmod +x "$work/python"
refused "has no torch" --bin "$TESSERA_BIN" --python "$work/python" speed
refused "has no surprise" --bin "$TESSERA_BIN" --surprise "$work/python" --data x ratings
refused "names another" --bin "$TESSERA_BIN" --python "$work/nothing" speed

printf '7\t20\t3\t9\n5\t10\t4\t1\n7\t10\t1.5\t4\n5\t20\t2\t8\n' > "$work/u.data"
split() { "$TESSERA_BIN/bench_rating_split" --data "$work/u.data" "$@" --output "$work/split.tsv"; }
split --split last > "$work/output"
grep -q '2 to train on, 2 to validate' "$work/output" || fail "$(cat "$work/output")"
printf 'user\titem\trating\theld_out\n0\t0\t4\t0\n1\t0\t1.5\t0\n1\t1\t3\t1\n0\t1\t2\t1\n' |
  diff - "$work/split.tsv"
for fold in 1 2; do
  split --split "fold:$fold/2" --seed 3 > "$work/output"
  awk -F '\t' '$4 == 1 {print $1, $2, $3}' "$work/split.tsv"
done | sort > "$work/held_out"
printf '0 0 4\n0 1 2\n1 0 1.5\n1 1 3\n' | diff - "$work/held_out"
if "$TESSERA_BIN/bench_rating_split" --data "$work/u.data" --output "$work/no/file" \
  > /dev/null 2> "$work/errors"; then
  fail "a file in no folder was written"
fi
grep -q 'no/file: cannot be written' "$work/errors" || fail "$(cat "$work/errors")"
