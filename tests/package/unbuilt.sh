#!/usr/bin/env bash
# Tests `cmake --install` twice: once when nothing is built, and once when all libraries are built,
# but only the programs that the project's run.sh builds. Both times the install must fail before it
# installs anything. The error must name the command that builds the missing targets.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
build=$work/build
cmake -S "$TESSERA_SOURCE_DIR" -B "$build" -DTESSERA_TESTS=OFF -DTESSERA_BENCH=OFF \
  -DTESSERA_CUDA=OFF > "$work/output" || fail "$(< "$work/output")"

# missing TARGET...: checks that the install fails, and that its error names exactly these targets.
missing() {
  if cmake --install "$build" --prefix "$work/installed" > "$work/output" 2>&1; then
    fail "installed without $*"
  fi
  [[ ! -e $work/installed ]] || fail "installed in part: $(find "$work/installed")"
  named=$(sed -nE "s/^ *cmake --build '.*' --target (.*)$/\1/p" "$work/output")
  [[ $named == "$*" ]] || fail "named '$named', expected '$*': $(< "$work/output")"
  grep -q 'Nothing is installed, because a part is not built' "$work/output" ||
    fail "$(< "$work/output")"
}
programs=(checkpoint comm_bench generate predict recommend relaunch report train_gpt
  train_recommender train_resnet tune zero_plan)
libraries=(core nn dist optim models data train files ratings train_ratings images train_images)
missing "${programs[@]}" "${libraries[@]/#/tessera_}"

# Imitates a build of all libraries, and of the programs that the project's run.sh builds. The files
# may be empty, because nothing is installed.
mkdir -p "$build/bin"
touch "$build"/bin/{generate,report,train_gpt}
for library in "${libraries[@]}"; do touch "$build/libtessera_$library.a"; done
missing checkpoint comm_bench predict recommend relaunch train_recommender train_resnet tune \
  zero_plan
