#!/usr/bin/env bash
# Installs the build to a place of its own, and with that compiles and runs the README's first
# program and one that reads images, outside the checkout.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$TESSERA_SOURCE_DIR"/tests/package/{CMakeLists.txt,images.cpp} "$work"
cp "$TESSERA_BUILD_DIR/samples/readme_sample_1.cpp" "$work/main.cpp"

cmake --install "$TESSERA_BUILD_DIR" --prefix "$work/installed" > /dev/null
cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/installed"
cmake --build "$work/build"
cd "$work"
OMP_NUM_THREADS=1 mpirun -n 2 build/consumer < /dev/null
build/images
"$work/installed/bin/train_gpt" --help > /dev/null
