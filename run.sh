#!/usr/bin/env bash
# Trains a small GPT with ZeRO-2 on Tessera's own sources: installs what is missing, builds, runs.
# Arguments go to train_gpt and override the flags below, but flags in a file of --config do not.
# TESSERA_RANKS is the number of ranks (default: 2).
# CUDA code is compiled if the machine has a GPU, nvcc and NCCL, or with TESSERA_CUDA=ON.
# With TESSERA_DEPS=FOLDER nothing is installed; see scripts/bundle_dependencies.sh.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/scripts/common.sh"

ranks=${TESSERA_RANKS:-2}
[[ $ranks =~ ^[1-9][0-9]*$ ]] || die "TESSERA_RANKS is '$ranks', expected a number of ranks"
threads=$((cores / ranks > 0 ? cores / ranks : 1))

install_packages
# CUDA code takes minutes to compile, so it is compiled only with a GPU or on request. Without a
# GPU and with TESSERA_CUDA unset, an existing build keeps its setting.
if [[ -z ${TESSERA_CUDA:-} ]]; then
  if has_gpu; then
    cuda=AUTO
  elif [[ -f build/release/build.ninja ]]; then
    cuda=
  else
    say "no GPU here, so without CUDA; TESSERA_CUDA=ON ./run.sh compiles for one"
    cuda=OFF
  fi
fi
build release train_gpt generate report corpus

# train_gpt warns if --data is given twice.
data=(--data build/release/corpus.txt)
if [[ " $* " == *" --data "* || " $* " == *" --data="* ]]; then data=(); fi
train=(mpirun -n "$ranks" build/release/bin/train_gpt "${data[@]}"
  --preset nano --stage 2 --threads "$threads" --sample 200)
# train_gpt refuses --report together with --eval-only, which writes no file.
if [[ " $* " != *" --eval-only "* ]]; then train+=(--report build/release/run.html); fi
train+=("$@")
say "${train[*]}"
OMP_NUM_THREADS=$threads exec "${train[@]}" < /dev/null
