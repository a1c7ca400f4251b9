#!/usr/bin/env bash
# The README's five commands work unchanged.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
ln -s "$TESSERA_SOURCE_DIR/docs" docs
mkdir build
ln -s "$TESSERA_BUILD_DIR" build/release
sed -n '/^## Five commands/,/^## /s/^    //p' "$TESSERA_SOURCE_DIR/README.md" > commands.sh
[[ $(wc -l < commands.sh) == 5 ]] || fail "not five commands: $(cat commands.sh)"
bash -e commands.sh > output.txt 2> errors.txt < /dev/null || fail "$(cat output.txt errors.txt)"
grep -q 'planned and measured are equal on all ranks (2)' output.txt || fail "$(cat output.txt)"
grep -qE '^step 0  validation loss [0-9.]+  perplexity [0-9.]+  [0-9.]+ bits per byte' output.txt ||
  fail "$(cat output.txt)"
grep -q '^A rank ' output.txt || fail "no sample: $(cat output.txt)"
[[ $(wc -l < run.csv) == 501 && -s run.html ]] || fail "no table or no page"
