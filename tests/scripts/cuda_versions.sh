#!/usr/bin/env bash
# Tests that an nvcc, an NCCL or GPUs that are too old for the CUDA code are named when a build is
# configured. The build is then without CUDA, or refused if TESSERA_CUDA is ON. Small files stand in
# for nvcc, NCCL and nvidia-smi.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

# prints PROGRAM TEXT: makes a program that prints TEXT.
prints() {
  printf '#!/bin/sh\necho "%s"\n' "$2" > "$work/$1"
  chmod +x "$work/$1"
}
# nccl MINOR: makes the header of NCCL 2.MINOR.
nccl() { printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR %s\n' "$1" > "$work/nccl.h"; }

# configured CUDA STATUS TEXT...: configures with this TESSERA_CUDA. CMake must end with this exit
# code, and print every TEXT.
configured() {
  local cuda=$1 expected=$2 status=0 text
  shift 2
  PATH=$work:$PATH cmake -S "$TESSERA_SOURCE_DIR" -B "$work/build" -DTESSERA_TESTS=OFF \
    -DTESSERA_BENCH=OFF -DTESSERA_CUDA="$cuda" -DTESSERA_NVCC="$work/nvcc" \
    -DTESSERA_NCCL="$work/libnccl.so" -DTESSERA_NCCL_INCLUDE="$work" > "$work/output" 2>&1 ||
    status=$?
  [[ $status == "$expected" ]] || fail "exit code $status instead of $expected: $(< "$work/output")"
  for text; do
    # CMake wraps the lines of an error.
    tr -s ' \n' ' ' < "$work/output" | grep -qF -- "$text" || fail "no '$text': $(< "$work/output")"
  done
}

prints nvcc 'Cuda compilation tools, release 11.8, V11.8.89'
nccl 18
prints nvidia-smi 7.5
configured AUTO 0 '-- Without CUDA: nvcc is version 11.8, expected 12 or later'
configured ON 1 'TESSERA_CUDA is ON, but nvcc is version 11.8, expected 12 or later'
prints nvcc 'Cuda compilation tools, release 12.0, V12.0.76'
configured AUTO 0 '-- Without CUDA: NCCL is version 2.18, expected 2.19 or later'
nccl 19
configured AUTO 0 '-- Without CUDA: the GPUs have compute capability 7.5, expected 8.0 or later'
configured ON 1 'TESSERA_CUDA is ON, but the GPUs have compute capability 7.5, expected 8.0 or'
# A machine may have an old GPU beside one that is new enough.
prints nvidia-smi $'7.5\n9.0'
configured AUTO 0 '-- Without CUDA on GPUs of compute capability 7.5, expected 8.0 or later' \
  "-- Without CUDA: $work/nvcc does not work"
