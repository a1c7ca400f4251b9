#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests:
#  - The release build runs all tests except those on emulated CUDA.
#  - The build with the address and undefined behaviour sanitizers runs the tests of core, dist and
#    optim/kernels, and the MPI tests of optim and train, on the CPU and on emulated CUDA. On
#    emulated CUDA it also runs the tests of models and some of the tests of applications. It also
#    gives damaged files to the readers of files (tests/hostile).
# Other tests, such as the unit tests of nn, data and train, run in the release build alone.
# --full adds the thread sanitizer, and the slow tests (label `full`), which try many combinations
# of settings. Other arguments go to ctest.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"

presets=(release asan)
selection=(--label-exclude '^full$')
arguments=()
for argument in "$@"; do
  case $argument in
    --full)
      presets+=(tsan)
      selection=()
      ;;
    --fu*) die "there is no option $argument, expected --full or options of ctest" ;;
    *) arguments+=("$argument") ;;
  esac
done

install_packages
for preset in "${presets[@]}"; do build "$preset"; done

# One ctest runs the tests of all builds, so that one summary is printed at the end.
mkdir -p build/tests
for preset in "${presets[@]}"; do
  printf 'subdirs("%s/build/%s")\n' "$PWD" "$preset"
done > build/tests/CTestTestfile.cmake
say "testing ${presets[*]}"
# Many tests wait for a signal, a time limit or the disk, so 1.5 times as many tests as cores run at
# a time. On two cores, this keeps the cores busy for 90 % of the time instead of 60 %.
exec ctest --test-dir build/tests --parallel "$((cores + cores / 2))" --output-on-failure \
  --no-label-summary --no-tests=error "${selection[@]}" "${arguments[@]}"
