#!/usr/bin/env bash
# Tests --device, --comm, --comm-timeout, --tuned, --graph and the program `tune`, with and without
# a GPU: the choice of device and communicator, and values that are refused. The second half needs a
# GPU, real or emulated, and is skipped without a GPU.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
tune=$TESSERA_BIN/tune
run=("${tiny[@]}" --data text.txt --steps 1 --eval-every 0 --log run.jsonl)

expect "--device is 'gpu', expected one of cpu, cuda" "$train_gpt" "${run[@]}" --device gpu
expect "--device is 'gpu', expected one of cpu, cuda" "$generate" none.safetensors --device gpu
expect "--comm is 'tcp', expected one of auto, nccl, mpi" "$train_gpt" "${run[@]}" --comm tcp
for seconds in 0 -1 inf nan; do
  expect "--comm-timeout is $seconds, expected a " \
    "$train_gpt" "${run[@]}" --comm-timeout "$seconds"
done
expect '--comm-timeout is -5, expected a ' \
  mpirun -n 2 "$TESSERA_BIN/train_resnet" --steps 1 --comm-timeout -5
expect "--comm-timeout is 'x', expected a number" "$train_gpt" "${run[@]}" --comm-timeout x
expect '--comm nccl: NCCL connects only GPUs, but --device is cpu' \
  "$train_gpt" "${run[@]}" --device cpu --comm nccl
expect 'no.json: the table is for products on CUDA, and ' \
  mpirun -n 2 "$train_gpt" "${run[@]}" --device cpu --tuned no.json
expect 'graph: the ranks compute on the CPU' "$train_gpt" "${run[@]}" --device cpu --graph on
expect 'graph: the ranks compute on the CPU' "$TESSERA_BIN/train_resnet" --batch 2 --micro-batch 2 \
  --steps 1 --device cpu --graph on --log run.jsonl
expect '--out is required' "$tune"
expect '--micro-batch is 0' "$tune" --micro-batch 0 --out tuned.json
[[ ! -e run.jsonl ]] || fail "a log of a run that was refused"

# used DEVICE COMMAND...: runs the command, whose log must say that it ran on DEVICE.
used() {
  local device=$1
  shift
  must_work "$@" "${run[@]}"
  local header
  header=$(head -n 1 run.jsonl)
  [[ $header == *"\"device\":\"$device\""* ]] || fail "not on $device: $*"$'\n'"$header"
  if [[ $device == cpu && $header == *device_name* ]]; then fail "a CPU's name: $header"; fi
  if [[ $device == cuda && $header != *'"device_name":"'* ]]; then fail "no name: $header"; fi
}

# Without a GPU.
export TESSERA_EMULATED_DEVICES=0
used cpu "$train_gpt"
used cpu "$train_gpt" --device auto --comm mpi
used cpu mpirun -n 2 "$train_gpt"
expect '--device cuda: rank 0 has no usable GPU: .' "$train_gpt" "${run[@]}" --device cuda
expect '--device cuda: rank 0 has no usable GPU: .' mpirun -n 2 "$train_gpt" "${run[@]}" \
  --device cuda --comm mpi
expect '--comm nccl: rank 0 has no usable GPU: .' "$train_gpt" "${run[@]}" --comm nccl
expect '--device cuda: there is no usable GPU: .' "$generate" none.safetensors --device cuda
expect 'there is no usable GPU: .' "$train_gpt" "${run[@]}" --tuned no.json
expect 'there is no usable GPU to measure on: .' "$tune" --out tuned.json
[[ ! -e tuned.json ]] || fail "a table without a GPU"

# With a GPU.
show_gpus
export TESSERA_EMULATED_DEVICES=1
if "$train_gpt" "${run[@]}" --device cuda > cuda.log 2>&1 < /dev/null; then
  [[ -v visible_gpus ]] || export CUDA_VISIBLE_DEVICES=0
  used cuda "$train_gpt"
  emulated=
  if head -n 1 run.jsonl | grep -q 'emulated GPU'; then emulated=yes; fi
  # A checkpoint records the version of the library, which proposes and defines the algorithms.
  used cuda "$train_gpt" --checkpoint saved
  grep -q '"cuBLASLt":"[1-9][0-9]*"' saved/step-000000001/manifest.json ||
    fail "no version of cuBLASLt: $(grep '"bits"' saved/step-000000001/manifest.json)"
  # A run measures algorithms before its first step. If the run then fails before this step, the
  # error must not name a step, because the measurement is not a step of the run.
  ! "$train_gpt" "${run[@]}" --device cuda --tune on --log no/run.jsonl \
    > stdout.log 2> stderr.log < /dev/null || fail "it ran: $(cat stderr.log)"
  grep -q '^error: no/run.jsonl: .* the folder no does not exist$' stderr.log ||
    fail "$(cat stderr.log)"
  used cuda mpirun -n 2 "$train_gpt"
  used cuda mpirun -n 2 "$train_gpt" --device cuda --comm mpi
  used cpu mpirun -n 2 "$train_gpt" --device cpu
  if [[ ! -v visible_gpus ]]; then
    expect 'its host has 2 ranks, and the rank sees 1 GPU, expected a GPU for each rank; start' \
      mpirun -n 2 "$train_gpt" "${run[@]}" --comm nccl
  fi
  if [[ -n $emulated ]]; then
    # Rank 0 prints the error, with the reason of the rank that has no GPU.
    expect '--device cuda: rank 1 has no usable GPU: .' \
      mpirun -n 1 "$train_gpt" "${run[@]}" --device cuda : \
      -n 1 -x TESSERA_EMULATED_DEVICES=0 "$train_gpt" "${run[@]}" --device cuda
    # Ranks whose GPUs differ are refused, except with --reduction fast.
    # The command line is not put into a function, because `expect` accepts lines of mpirun itself
    # only if its command is mpirun.
    ordered=("${run[@]}" --reduction ordered)
    expect 'reduction ordered: rank 1 has 5 multiprocessors, rank 0 has 3 multiprocessors, so' \
      mpirun -n 1 -x TESSERA_EMULATED_MULTIPROCESSORS=3 "$train_gpt" "${ordered[@]}" : \
      -n 1 -x TESSERA_EMULATED_MULTIPROCESSORS=5 "$train_gpt" "${ordered[@]}"
    fast=("${run[@]}" --reduction fast --tune on)
    must_work mpirun -n 1 -x TESSERA_EMULATED_MULTIPROCESSORS=3 "$train_gpt" "${fast[@]}" : \
      -n 1 -x TESSERA_EMULATED_MULTIPROCESSORS=5 "$train_gpt" "${fast[@]}"
    grep -q 'no algorithms are measured, because rank 1 has 5 multiprocessors' stderr.log ||
      fail "$(cat stderr.log)"
    # Each rank sees only a GPU of its own, as CUDA_VISIBLE_DEVICES can arrange it.
    must_work mpirun -n 1 "$train_gpt" "${run[@]}" --comm nccl : \
      -n 1 -x TESSERA_EMULATED_FIRST_DEVICE=1 "$train_gpt" "${run[@]}" --comm nccl
  fi
  expect 'none.safetensors: cannot be opened' "$generate" none.safetensors --device cuda
  expect 'no.json: cannot be opened' mpirun -n 2 "$train_gpt" "${run[@]}" --tuned no.json
  expect 'no/tuned.json: cannot be written' "$tune" --out no/tuned.json
  expect 'tune measures on one rank, but was started on 2 ranks' \
    mpirun -n 2 "$tune" --out tuned.json
elif ! grep -q 'no usable GPU' cuda.log; then
  fail "$(cat cuda.log)"
fi
[[ -z $(find . -name '*.tmp*') ]] || fail "files were left behind"
