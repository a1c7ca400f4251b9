#!/usr/bin/env bash
# Tests what course/check prints of a lesson's program that ends with an error. Small scripts stand
# in for the lesson's programs, so nothing is built. Also tests that each lesson names and explains
# exactly its planted bugs.
set -euo pipefail
cd "$TESSERA_SOURCE_DIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
program() {
  printf '#!/bin/sh\n%s\n' "$1" > "$work/lesson4_solution"
  chmod +x "$work/lesson4_solution"
}
# Checks the output of the program, and the exit code of course/check.
ranks=1
prints() {
  local code=0
  course/check 4 --solution --programs "$work" --ranks "$ranks" > "$work/output" 2>&1 || code=$?
  [ "$code" = "$1" ] || fail "exit code $code, expected $1: $(< "$work/output")"
  [ "$(< "$work/output")" = "$2" ] || fail "expected '$2', got '$(< "$work/output")'"
}

ranks=2
prints 2 "error: $work/lesson4_solution does not exist"
ranks=1

# The error of one rank is enough, and a line of the program that looks like an error is no error.
program 'echo "error: mine"; echo "  at  the sum"; echo "rank 0: bad"; echo "rank 2: bad"; exit 1'
prints 1 'error: mine
  NO  the sum
      rank 0: bad'

# mpirun may print stderr first.
program 'echo "rank 2: bad"; echo "rank 0: bad"; echo "  at  the sum"; exit 1'
prints 1 '  NO  the sum
      rank 2: bad'

program 'echo "mpirun noticed that process rank 0 exited on signal 11"; exit 139'
prints 1 '  NO  it runs
      it ended with segmentation fault (code 139)'

# Files that an aborted rank leaves behind are removed.
program 'mktemp; exit 1'
course/check 4 --solution --programs "$work" --ranks 1 > "$work/output" 2>&1 && fail "it passes"
left=$(head -n 1 "$work/output")
[ "${left#/}" != "$left" ] || fail "the program made no file: $left"
[ ! -e "$left" ] || fail "$left is left behind"

for bugs in course/*/bugs.txt; do
  lesson=$(dirname "$bugs")
  planted=$(grep -oE '^\[[a-z]\]$' "$bugs" | tr -d '[]' | tr -d '\n')
  explained=$(grep -oE '^- \*\*[a-z]\*\*' "$lesson/answers.md" | tr -d -- '- *' | tr -d '\n')
  [ "$explained" = "$planted" ] || fail "$lesson/answers.md explains $explained, not $planted"
  numbers=(zero one two three four five six seven eight nine ten)
  grep -q "^There are ${numbers[${#planted}]}, ${planted:0:1} to ${planted: -1}[.:]" \
    "$lesson/README.md" || fail "$lesson/README.md does not name the bugs $planted"
done
