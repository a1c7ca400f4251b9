#!/usr/bin/env bash
# ctest: TIMEOUT 900
# Runs the programs on GPUs as users do: with the device's memory pool and NCCL's registered
# buffers, and without a wait after each launch. (Tests of the library use memory that the host
# shares, and wait after each launch.) All layouts of one training (ranks, stage, communicator) must
# have the losses and weights of the first layout, and hold and send the planned bytes. The test is
# skipped without a GPU. TESSERA_QUICK=1 skips most runs.
. "$TESSERA_SOURCE_DIR/tests/apps/common.bash"
show_gpus
# If a machine has fewer GPUs than ranks, several ranks share a GPU and communicate over MPI.
if [[ -v TESSERA_EMULATED_DEVICES ]]; then
  gpus=$TESSERA_EMULATED_DEVICES
else
  gpus=$(python3 "$TESSERA_SOURCE_DIR/bench/gpu_count.py")
fi
if ! "$train_gpt" "${tiny[@]}" --data text.txt --steps 1 --eval-every 0 --device cuda \
  > stdout.log 2> stderr.log < /dev/null; then
  grep -q 'no usable GPU' stderr.log || fail "$(cat stderr.log)"
  echo "skipped: $(grep -m 1 'no usable GPU' stderr.log)"
  exit 77
fi

shape=(--layers 2 --heads 2 --width 32 --context 32 --micro-batch 2)
if ! grep -q 'on emulated' stderr.log; then
  shape=(--layers 4 --heads 4 --width 256 --context 128 --micro-batch 2)
fi
# The bits of runs are compared. So the runs have --tune off, because algorithms that are chosen by
# measured times may differ from run to run.
run=(--data text.txt "${shape[@]}" --global-batch 6 --steps 3 --eval-every 3 --eval-batches 2
  --device cuda --reduction ordered --tune off)

# say PROGRAM RANKS ARGUMENTS: prints what runs next. If a time limit ends this script, the log
# shows how far it got.
say() { printf '%4d s: %s, %s ranks: %s\n' "$SECONDS" "$@"; }

# same NAME RANKS ARGUMENT...: runs train_gpt, which must have the losses and weights of the first
# run of this name.
same() {
  local name=$1 ranks=$2
  shift 2
  say train_gpt "$ranks" "$*"
  ranks "$ranks" "${run[@]}" "$@" --log run.jsonl --save run.safetensors
  grep -q 'planned and measured are equal' stdout.log || fail "not as planned: $*"$'\n'"$(
    cat stdout.log)"
  as_first "$name" "$ranks ranks, $*"
}

# Ranks communicate over NCCL, with one GPU each, and then over MPI.
most=$((gpus < 3 ? gpus : 3))
read -ra stages <<< "${TESSERA_STAGES:-0 1 2 3}"  # for the next loop
if [[ ${TESSERA_QUICK:-} == 1 ]]; then stages=(3); fi
for stage in "${stages[@]}"; do
  for ((n = 1; n <= most; ++n)); do
    same bf16 "$n" --precision bf16 --stage "$stage" --comm nccl
    grep -q '"communicator":"nccl"' run.jsonl || fail "not over NCCL: $(head -n 1 run.jsonl)"
    same bf16 "$n" --precision bf16 --stage "$stage" --comm nccl --graph on
    grep -q '"graph":true' run.jsonl || fail "the header does not say graph"
  done
  same bf16 2 --precision bf16 --stage "$stage" --comm mpi
  grep -q '"device":"cuda"' run.jsonl || fail "not on CUDA: $(head -n 1 run.jsonl)"
done
[[ $(wc -l < bf16.txt) == 4 ]] || fail "$(cat bf16.txt)"

# Tests options that use memory differently: buckets so small that every large tensor has its own
# bucket, no overlap, and optimizer state on the host.
for stage in 2 3; do
  for graph in off on; do
    same bf16 "$most" --precision bf16 --stage "$stage" --graph "$graph" --bucket-bytes 4000
    same bf16 "$most" --precision bf16 --stage "$stage" --graph "$graph" --overlap off
    if [[ ${TESSERA_QUICK:-} == 1 ]]; then break; fi
  done
  same bf16 "$most" --precision bf16 --stage "$stage" --offload optimizer
  if [[ ${TESSERA_QUICK:-} == 1 ]]; then break; fi
  same bf16 2 --precision bf16 --stage "$stage" --offload optimizer --comm mpi
done
for graph in off on; do same dropped "$most" --dropout 0.1 --graph "$graph"; done
# Computes logits in several chunks of rows. The size of the vocabulary is odd, so rows are padded.
for graph in off on; do
  same padded "$most" --precision bf16 --vocab 1009 --loss-rows 24 --graph "$graph"
done
same recomputed "$most" --recompute --stage 3 --graph on
same recomputed 2 --stage 0 --comm mpi
if [[ ${TESSERA_QUICK:-} == 1 ]]; then exit 0; fi

# Recommenders: equal results over ranks, communicators, stages and graphs.
recommender() {
  local name=$1 ranks=$2
  shift 2
  say train_recommender "$ranks" "$*"
  must_work mpirun -n "$ranks" "$TESSERA_BIN/train_recommender" --batch 48 --micro-batch 8 \
    --steps 3 --eval-every 3 --device cuda --reduction ordered --factors 8 "$@" --log run.jsonl \
    --save run.safetensors
  # The bytes that row-sparse tables send through the host depend on the data and are not planned.
  if [[ $* != *"--tables sparse"* ]] || grep -q '"communicator":"nccl"' run.jsonl; then
    grep -q 'planned and measured are equal' stdout.log || fail "not as planned: $(cat stdout.log)"
  fi
  sed -i -E 's/,"samples_per_s".*"epoch"/,"epoch"/' run.jsonl
  as_first "$name" "$ranks ranks, $*"
}
for graph in off on; do
  recommender ratings "$most" --tables dense --model svd++ --stage 3 --comm nccl --graph "$graph"
done
recommender ratings 2 --tables dense --model svd++ --stage 2 --comm mpi
recommender sparse "$most" --tables sparse --model svd++ --stage 3 --comm nccl
recommender sparse 2 --tables sparse --model svd++ --stage 2 --comm mpi
recommender sparse 1 --tables sparse --model svd++ --stage 0
recommender sparse 2 --tables sparse --model svd++ --stage 2 --offload optimizer
ranking=(--tables dense --model neumf --objective ranking --precision bf16)
recommender ranking 1 "${ranking[@]}" --stage 0 --graph on
recommender ranking 2 "${ranking[@]}" --stage 2 --comm mpi

# A ResNet: equal results over ranks, communicators, stages and graphs, if the build has cuDNN.
images=(--batch 6 --micro-batch 2 --steps 3 --eval-every 0 --device cuda --reduction ordered)
resnet() {
  say train_resnet "$1" "${*:2}"
  must_work mpirun -n "$1" "$TESSERA_BIN/train_resnet" "${images[@]}" "${@:2}" --log run.jsonl \
    --save run.safetensors
  grep -q 'planned and measured are equal' stdout.log || fail "not as planned: $(cat stdout.log)"
  as_first images "$*"
}
if ! "$TESSERA_BIN/train_resnet" "${images[@]}" > stdout.log 2> stderr.log < /dev/null &&
  grep -q 'has no cuDNN' stderr.log; then
  echo "without train_resnet: $(grep -m 1 'has no cuDNN' stderr.log)"
  exit 0
fi
resnet 1
resnet "$most" --comm nccl --stage 3
resnet 2 --comm mpi --stage 2
resnet "$most" --comm nccl --stage 1 --graph on
