#!/usr/bin/env bash
# ctest: LABELS full TIMEOUT 1800
# Runs every call of bench/gpu.sh on the emulated device, with this build. Tests what each call
# runs, which results it leaves, and what it reports if something is missing or fails.
set -euo pipefail
cd "$TESSERA_SOURCE_DIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; cat "$work/output" >&2; exit 1; }
if ! grep -qx 'TESSERA_BENCH:BOOL=ON' "$TESSERA_BUILD_DIR/CMakeCache.txt"; then
  echo "skipped: built without TESSERA_BENCH"
  exit 77
fi
export TESSERA_GPU_BUILD=$TESSERA_BUILD_DIR
unset TESSERA_BIN TESSERA_PYTHON

# call STATUS ARGUMENT...: runs bench/gpu.sh, which must end with this exit code.
call() {
  local expected=$1 status=0
  shift
  bench/gpu.sh --emulated --report "$work/report" "$@" > "$work/output" 2>&1 || status=$?
  [[ $status == "$expected" ]] || fail "exit code $status instead of $expected: $*"
}
# has TEXT...: each text must begin a line of the report's table.
has() {
  local text
  for text; do
    grep -q -- "^| $text" "$work/report/table.md" || fail "the table has no '$text'"
  done
}

call 1 --measure weather
grep -q -- "--measure weather: expected one of kernels gpt2" "$work/output" || fail "not refused"
call 1 --sanitise
grep -q "unknown argument --sanitise" "$work/output" || fail "not refused"
TESSERA_GPU_BUILD=$work/none call 1 --tests
grep -q "has no build: bench/gpu.sh --build comes first" "$work/output" || fail "not refused"

call 0 --build
has 'build | ok' 'build_rest | ok'
call 0  # without TESSERA_PYTHON, the default call has --peer none: PyTorch is not measured
has 'bf16 product | ' 'head logits, 101 columns' 'head dweight, 128 columns' \
  'nano, bf16: step | ' "nano, bf16, with tune's table: step | " 'kernels | ok' 'gpt2 | ok'
! grep -q PyTorch "$work/report/table.md" || fail "a figure of the peer's"
call 0 --measure resnet ordered --peer none
has 'resnet20, bf16, 32x32, B=2: step | ' 'ordered against fast reduction' 'gpt2 | ok'
call 0 --tests
has 'test_core | ok' 'test_dist | ok' 'test_dist_mpi_np2 | ok' 'equal_bits_mpi_np2 | ok' \
  'test_dist_nccl_np2 | ok' 'equal_bits_nccl_np2 | ok'
call 0 --programs
has 'programs | ok' 'test_dist | ok'

# Tests --sanitize without compute-sanitizer, with a compute-sanitizer that finds no error, and with
# a compute-sanitizer that finds an error.
call 0 --sanitize
has 'sanitize_memcheck_step | skipped: compute-sanitizer is not installed'
mkdir "$work/bin"
cat > "$work/bin/compute-sanitizer" << 'STUB'
#!/bin/sh
if [ "$1" = --help ]; then echo "  --kernel-name arg"; exit; fi
[ "$1 $3 $4 $5 $6" = "--tool --error-exitcode 9 --kernel-name kns=tessera" ] || exit 3
tool=$2
shift 6
if [ "$tool" = memcheck ]; then
  [ "$1 $2" = "--report-api-errors no" ] || exit 3
  shift 2
fi
"$@" || exit
if [ "$tool" = "$FINDS" ]; then exit 9; fi
STUB
chmod +x "$work/bin/compute-sanitizer"
export PATH=$work/bin:$PATH
call 0 --sanitize
has 'sanitize_memcheck_step | ok' 'sanitize_memcheck_kernels | ok' \
  'sanitize_memcheck_update | ok' \
  'sanitize_racecheck_kernels | ok' 'sanitize_synccheck_step | ok' 'sanitize_initcheck_kernels | ok'
FINDS=racecheck call 1 --sanitize
has 'sanitize_racecheck_step | FAILED with exit code 9' 'sanitize_memcheck_step | ok'

# The failure of an earlier call stays in the table, but does not change this call's exit code.
call 0 --measure ordered --peer none
has 'sanitize_racecheck_step | FAILED with exit code 9'

# After the time limit, the table still has the earlier results.
TESSERA_GPU_SECONDS=0 call 1 --measure kernels --peer none
has 'kernels | FAILED: no time was left' 'resnet | ok'
