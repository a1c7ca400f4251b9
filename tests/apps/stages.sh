#!/usr/bin/env bash
# Trains in every precision at every ZeRO stage, as users do. Within a precision, losses, sampled
# text and saved weights must have equal bits at any stage, for any number of ranks. Memory and
# traffic must be as planned.
# ctest: TIMEOUT 600
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
run=(--data text.txt --preset nano --steps 4 --eval-every 2 --eval-batches 4 --dropout 0.1)

sampled() { sed -n '/^--- sample$/,/^---$/p' stdout.log; }
must_be_as_planned() {
  grep -q "planned and measured are equal on all ranks ($1)" stdout.log ||
    fail "$2"$'\n'"$(cat stdout.log)"
}
# same NAME RANKS ARGUMENT...: trains. The results must equal those of the first run of this NAME.
same() {
  local name=$1 n=$2 what="$1, $2 ranks, ${*:3}"
  mkdir -p "$name"
  ranks "$n" "${run[@]}" "${@:3}" --sample 12 --log run.jsonl --save "$name/saved.safetensors"
  must_be_as_planned "$n" "$what"
  if [[ ! -e $name.txt ]]; then
    { losses run.jsonl && sampled; } > "$name.txt"
    mv "$name/saved.safetensors" "$name/first.safetensors"
    mv run.jsonl "$name.jsonl"
  else
    { losses run.jsonl && sampled; } | diff "$name.txt" - || fail "other results: $what"
    cmp "$name/first.safetensors" "$name/saved.safetensors" || fail "other weights: $what"
  fi
}

for precision in fp32 bf16 fp16; do
  for n in 1 3; do
    for stage in 0 1 2 3; do
      same "$precision" "$n" --precision "$precision" --stage "$stage"
    done
  done
  same "$precision" 2 --precision "$precision" --stage 3 --recompute --bucket-bytes 60000
done
slow='no instructions for products in fp16: they are computed in fp32, which is correct, but slower'
[[ $(grep -c "$slow" stderr.log) == 1 ]] || fail "fp16 is not said to be slow: $(cat stderr.log)"
# Each bucket has one parameter of at most 1,024 elements, which is 4 blocks of 256. Ranks own whole
# blocks, so some of the 6 ranks own no element of any parameter.
small=(--layers 1 --heads 1 --width 4 --context 4 --bucket-bytes 1 --global-batch 6 --micro-batch 1)
for precision in fp32 bf16; do
  ranks 6 --data text.txt "${small[@]}" --steps 2 --eval-every 1 --eval-batches 1 --stage 3 \
    --precision "$precision"
  must_be_as_planned 6 "ranks without elements in $precision"
done
for stage in 0 1 2 3; do
  same bf16_sums $((stage + 1)) --precision bf16 --grad-shard bf16 --stage "$stage"
done
same fp32 2 --offload optimizer
grep -q "offload: a CPU's optimizer state is on the host anyway" stderr.log ||
  fail "offload is not explained: $(cat stderr.log)"
cmp -s fp32/first.safetensors bf16/first.safetensors && fail "bf16 trained as fp32 does"
cmp -s bf16/first.safetensors bf16_sums/first.safetensors &&
  fail "sums in bf16 have the bits of sums in fp32"

python3 - << 'PYTHON'
import json

def strict(text):
    return json.loads(text, parse_constant=lambda name: 1 / 0)

expected = {"fp32": ("fp32", "fp32"), "bf16": ("bf16", "fp32"), "fp16": ("fp16", "fp32"),
            "bf16_sums": ("bf16", "bf16")}
evaluated = {}
for name, (precision, grad_shard) in expected.items():
    header, *lines = [strict(line) for line in open(f"{name}.jsonl")]
    assert header["precision"] == precision and header["grad_shard"] == grad_shard
    assert header["recompute"] is False and header["offload"] == "none"
    steps = [line for line in lines if line["type"] == "step"]
    assert all(("loss_scale" in step) == (precision == "fp16") for step in steps)
    if precision == "fp16":
        assert steps[0]["loss_scale"] == 65536
    evaluated[name] = [line["val_loss"] for line in lines if line["type"] == "eval"][-1]
assert max(evaluated.values()) - min(evaluated.values()) < 0.05, evaluated
PYTHON

# Three ranks load the weights that a bf16 run on one rank saved, and save equal bytes. The learning
# rate is so small that no f32 weight changes.
still=(--optimizer sgd --lr 1e-37 --steps 1 --eval-every 0 --clip 0)
for precision in fp32 bf16; do
  for stage in 0 3; do
    ranks 3 --data text.txt "${still[@]}" --precision "$precision" --stage "$stage" \
      --init bf16/first.safetensors --save bf16/again.safetensors
    cmp bf16/first.safetensors bf16/again.safetensors ||
      fail "$precision, stage $stage changed the weights"
  done
done
"$generate" bf16/first.safetensors --prompt 'int ' --tokens 10 > generated.txt
[[ $(wc -c < generated.txt) == 15 ]] || fail "$(cat generated.txt)"

# Trains in fp16 with weights so large that gradients overflow. Every rank must skip the step and
# halve the loss scale, and the job must report the step. Traffic must be as planned, although a
# skipped step leaves out the exchanges that only an update needs.
python3 - << 'PYTHON'
import json, struct
data = bytearray(open("fp16/first.safetensors", "rb").read())
length = struct.unpack("<Q", data[:8])[0]
entry = json.loads(data[8:8 + length])["transformer.ln_f.weight"]
begin, end = (8 + length + offset for offset in entry["data_offsets"])
data[begin:end] = struct.pack("<128f", *[5.0] * 128)
open("fp16/large.safetensors", "wb").write(data)
PYTHON
for stage in 0 1 2 3; do
  ranks 3 --data text.txt --steps 6 --eval-every 0 --precision fp16 --stage "$stage" \
    --init fp16/large.safetensors --log skip.jsonl
  must_be_as_planned 3 "skipped steps at stage $stage"
  grep -q 'skipped, gradients overflow at a loss scale of 65536' stderr.log ||
    fail "no step was skipped: $(cat stderr.log)"
  losses skip.jsonl > "skip$stage.txt"
  cmp skip0.txt "skip$stage.txt" || fail "stage $stage skipped other steps"
done
python3 - << 'PYTHON'
import json
lines = [json.loads(line) for line in open("skip.jsonl")]
steps = [line for line in lines if line["type"] == "step"]
skipped = [step["step"] for step in steps if "skipped" in step]
assert skipped and skipped[0] == 1 and len(skipped) < len(steps), skipped
assert lines[-1]["skipped"] == len(skipped)
for before, after in zip(steps, steps[1:]):
    factor = 0.5 if "skipped" in before else 1
    assert after["loss_scale"] == before["loss_scale"] * factor
PYTHON

# With this bucket size, the weight and the bias of each linear layer of an MLP are in different
# buckets. One operation of backward computes both gradients. Memory is as planned only if it
# completes them in the order of the buckets.
run=(--data text.txt --layers 2 --heads 2 --width 64 --context 16 --micro-batch 2 --global-batch 6
  --steps 2 --eval-every 2 --eval-batches 4)
same buckets 1 --precision bf16 --stage 3 --bucket-bytes 30000
same buckets 2 --precision bf16 --stage 2 --bucket-bytes 30000
