#!/usr/bin/env bash
# ctest: LABELS full TIMEOUT 3600
# Packs the dependencies with scripts/bundle_dependencies.sh, moves the folder, and hides the
# system's own copies of the packed libraries. Then builds the training programs and an MPI test
# with the moved folder, and runs train_gpt and the test. This build is also the one that finds a
# missing #include, because all presets precompile headers.
set -euo pipefail
. "$TESSERA_SOURCE_DIR/tests/scripts/bundle.bash"

make_bundle "$work/made"
mv "$work/made" "$work/moved"
hide_system_packages bash -ec '
  TESSERA_DEPS=$1/moved . "$TESSERA_SOURCE_DIR/scripts/common.sh"
  cmake -G Ninja -S . -B "$1/build" -DCMAKE_BUILD_TYPE=Debug -DTESSERA_CUDA=OFF -DTESSERA_BENCH=OFF
  packed="mpi|dnnl|fmt|spdlog|CLI|atch2|nlohmann|jpeg|png|libz"
  if grep -E "^[^=]*(DIR|LIBRARY)[^=]*=/usr/.*($packed)" "$1/build/CMakeCache.txt"; then exit 1; fi
  cmake --build "$1/build" --target train_gpt train_resnet train_recommender test_dist_mpi
  export OMP_NUM_THREADS=1
  mpirun -n 2 "$1/build/bin/test_dist_mpi" "~[full]~[.]" < /dev/null
  mpirun -n 2 "$1/build/bin/train_gpt" --data README.md --preset nano --steps 3 < /dev/null' \
  - "$work"
