#!/usr/bin/env bash
# Runs short trainings, and prints a hash of the losses, norms and weights of each training. A
# change that only moves code must leave all hashes as they are:
#
#   scripts/run_hashes.sh build/release build/emulated > before.txt
#   (make the change, and build)
#   scripts/run_hashes.sh build/release build/emulated | diff before.txt -
#
# Compare hashes only on one machine and with one compiler, because results depend on the compiler,
# the instruction set and the number of threads.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $# -eq 2 ]] || die "usage: scripts/run_hashes.sh BUILD EMULATED_BUILD"
build=$(cd "$called_from" && realpath -- "$1")/bin
emulated=$(cd "$called_from" && realpath -- "$2")/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMP_NUM_THREADS=1
# The training text is generated. A text made of Tessera's sources would change with the code.
awk 'BEGIN { for (i = 1; i < 6000; ++i) printf "%d %d\n", i * i % 9973, i * 7919 % 104729 }' \
  > text.txt

gpt=(--data text.txt --layers 2 --heads 4 --width 48 --context 32 --global-batch 10 --micro-batch 2
  --steps 6 --eval-every 3 --eval-batches 2)
images=(--model resnet20 --batch 6 --micro-batch 2 --steps 3 --eval-every 0)

# run NAME RANKS PROGRAM ARGUMENT...: trains, and prints one line with the hash and the name.
run() {
  local name=$1 ranks=$2
  shift 2
  mpirun -n "$ranks" "$@" --save weights.safetensors --log run.jsonl > output 2>&1 < /dev/null ||
    die "$name: $(cat output)"
  {
    grep -E '"type":"(step|eval)"' run.jsonl | sed -E 's/,"(tokens|images|samples)_per_s".*//'
    cat weights.safetensors
  } | sha256sum | sed "s/ .*/  $name/"
}
run gpt-fp32-stage0-1 1 "$build/train_gpt" "${gpt[@]}" --device cpu --stage 0
run gpt-bf16-stage1-2 2 "$build/train_gpt" "${gpt[@]}" --device cpu --stage 1 --precision bf16
run gpt-fp32-stage2-3 3 "$build/train_gpt" "${gpt[@]}" --device cpu --stage 2 --dropout 0.1
run gpt-bf16-stage3-5 5 "$build/train_gpt" "${gpt[@]}" --device cpu --stage 3 --precision bf16
run gpt-fp16-stage2-2 2 "$build/train_gpt" "${gpt[@]}" --device cpu --stage 2 --precision fp16
run gpt-recompute-stage3-3 3 "$build/train_gpt" "${gpt[@]}" --device cpu --stage 3 --recompute
run resnet-fp32-stage0-1 1 "$build/train_resnet" "${images[@]}" --device cpu --stage 0
run resnet-bf16-stage2-3 3 "$build/train_resnet" "${images[@]}" --device cpu --stage 2 \
  --precision bf16
run recommender-fp32-stage2-3 3 "$build/train_recommender" --steps 20 --eval-every 10 \
  --model neumf --objective ranking --device cpu --stage 2
export TESSERA_EMULATED_DEVICES=2
run gpt-emulated-stage3-2 2 "$emulated/train_gpt" "${gpt[@]}" --device cuda --stage 3 \
  --precision bf16 --reduction ordered --tune off
run resnet-emulated-stage1-2 2 "$emulated/train_resnet" "${images[@]}" --device cuda --stage 1 \
  --reduction ordered
