#!/usr/bin/env bash
# Installs the build to a temporary folder. Outside the checkout, compiles and runs these programs
# with the installed package: the README's first program, two programs that train their own models,
# a program that reads ratings, and a lesson of the course.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$TESSERA_SOURCE_DIR"/tests/package/{CMakeLists.txt,tokens.cpp,images.cpp,ratings.cpp} "$work"
cp "$TESSERA_BUILD_DIR/samples/readme_sample_1.cpp" "$work/main.cpp"

cmake --install "$TESSERA_BUILD_DIR" --prefix "$work/installed" > /dev/null
cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/installed"
cmake --build "$work/build"
cd "$work"
export OMP_NUM_THREADS=1
mpirun -n 2 build/consumer < /dev/null
"$work/installed/bin/train_gpt" --help > /dev/null

fail() { printf '%s\n' "$*" >&2; exit 1; }
losses() { grep -o '"loss":[0-9.]*' "$1" | cut -d : -f 2; }

# trains PROGRAM [ARGUMENT...]: runs the program on two ranks. The planned bytes must equal the
# measured bytes, the loss must fall, and the program must save its weights. A run on one rank must
# have the same losses as the run on two ranks.
trains() {
  local program=$1
  shift
  mpirun -n 2 "build/$program" "$@" > "$program.txt" < /dev/null
  grep -qx 'planned and measured are equal on all ranks (2)' "$program.txt" ||
    fail "$program: $(< "$program.txt")"
  losses "$program.jsonl" | awk 'NR == 1 { first = $1 } { last = $1 }
    END { exit !(NR >= 20 && last < 0.9 * first) }' || fail "$program: $(losses "$program.jsonl")"
  grep -q '"type":"eval","step":20,"val_loss"' "$program.jsonl" || fail "$program: no evaluation"
  [[ -s $program.safetensors ]] || fail "$program: no weights"
  mv "$program.jsonl" two.jsonl
  "build/$program" "$@" > /dev/null
  cmp <(losses two.jsonl) <(losses "$program.jsonl") || fail "$program: one rank trains otherwise"
}
# The README says how short these programs are.
grep -q 'programs of fewer than 70 lines' "$TESSERA_SOURCE_DIR/README.md" || fail "README.md"
for program in tokens images; do
  (($(wc -l < "$program.cpp") < 70)) || fail "$program.cpp: has $(wc -l < "$program.cpp") lines"
done
seq 1 6000 > numbers.txt
trains tokens numbers.txt
trains images
"$work/installed/bin/report" tokens.jsonl --out again.html > /dev/null
cmp tokens.html again.html
seq 2 6001 > others.txt
if mpirun -n 1 build/tokens numbers.txt : -n 1 build/tokens others.txt 2> error.txt \
  < /dev/null; then
  fail "ranks with other data trained together"
fi
grep -q 'data: rank 0 has .*, rank 1 has .*; all ranks of a job' error.txt || fail "$(< error.txt)"
if build/tokens missing.txt 2> error.txt; then fail "a missing file was taken"; fi
grep -q 'missing.txt' error.txt || fail "$(< error.txt)"
build/ratings > ratings.txt
grep -qx '60,000 ratings of 600 items by 1,000 users: 48,000 to train on, 12,000 to validate' \
  ratings.txt || fail "$(< ratings.txt)"
if build/ratings missing.txt 2> error.txt; then fail "missing ratings were taken"; fi
grep -q 'missing.txt: cannot be opened' error.txt || fail "$(< error.txt)"

# Builds tokens, images and ratings with pkg-config instead of CMake. Each .pc file must list the
# static libraries in an order that links.
if command -v pkg-config > /dev/null; then
  export PKG_CONFIG_PATH=$(dirname "$(find "$work/installed" -name tessera.pc)")
  for part in tokens: images:-images ratings:-ratings; do
    name=${part%:*}
    package=tessera${part#*:}
    # The output of pkg-config is unquoted, because it is several arguments.
    "${CXX:-g++}" -std=c++20 "$name.cpp" $(pkg-config --cflags --libs "$package") -o "by_$name" ||
      fail "$package.pc does not build $name.cpp"
  done
  ./by_ratings > by_ratings.txt
  cmp ratings.txt by_ratings.txt || fail "$(< by_ratings.txt)"
else
  echo "pkg-config is not installed: the .pc files are not tried"
fi

cp -r "$work/installed/share/tessera/course" course
for page in $(grep -rhoE 'docs/[a-z_]+\.md' course --include='*.md' | sort -u); do
  [ -f "$work/installed/share/tessera/$page" ] || fail "the course names $page"
done
course/check 4 --solution --ranks 2 --tessera "$work/installed" > lesson.txt ||
  fail "the course: $(< lesson.txt)"
grep -q 'ok  the losses have the bits of ZeroOptimizer' lesson.txt || fail "$(< lesson.txt)"
if course/check 4 > lesson.txt; then fail "the course's skeleton passes: $(< lesson.txt)"; fi
grep -q 'is not written yet' lesson.txt || fail "$(< lesson.txt)"
if course/check 9 2> error.txt; then fail "there is no lesson 9"; fi
grep -q 'there is no lesson 9' error.txt || fail "$(< error.txt)"
