#!/usr/bin/env bash
# Tests training on emulated GPUs as users run it. A table of `tune` must change the results of all
# ranks equally, and invalid tables and unsupported options must be refused.
# (tests/apps/gpu_paths.sh compares trainings with different numbers of ranks, ZeRO stages and other
# options.)
. "$TESSERA_SOURCE_DIR/tests/apps/common.bash"
export TESSERA_EMULATED_DEVICES=2
tune=$TESSERA_BIN/tune
shape=(--layers 2 --heads 2 --width 32 --context 32 --micro-batch 2)
run=(--data text.txt "${shape[@]}" --global-batch 6 --steps 3 --eval-every 3 --eval-batches 2
  --tune off)

# same NAME ARGUMENT...: trains on two ranks. Losses and weights must equal those of the first run
# with this name.
same() {
  local name=$1
  shift
  ranks 2 "${run[@]}" --device cuda "$@" --log run.jsonl --save run.safetensors
  as_first "$name" "$*"
}
same plain --comm nccl
[[ $(wc -l < plain.txt) == 4 ]] || fail "$(cat plain.txt)"
grep -q 'on emulated' stderr.log || fail "the device is not named: $(cat stderr.log)"

refuses_graph() { expect "graph: $1" mpirun -n 2 "$train_gpt" "${run[@]}" --graph on "${@:2}"; }
refuses_graph 'mpi sends buckets through the host' --device cuda --comm mpi
refuses_graph 'offload updates on the host' --device cuda --offload optimizer
refuses_graph 'loss scaling (f16) changes' --device cuda --precision fp16
refuses_graph 'the ranks compute on the CPU' --device cpu

must_work "$tune" "${shape[@]}" --out tuned.json
python3 - << 'PYTHON'
import json

table = json.load(open("tuned.json"))
assert "emulated" in table["device"] and table["cublaslt"] > 0
sizes = {(p["m"], p["n"], p["k"]) for p in table["products"]}
rows = 2 * 32
# Each linear layer has the products (m, n, k) of forward, dx and dW, in this order.
for inputs, outputs in ((32, 96), (32, 32), (32, 128), (128, 32)):
    assert {(rows, outputs, inputs), (rows, inputs, outputs), (inputs, outputs, rows)} <= sizes
assert {(rows, 256, 32), (rows, 32, 256), (256, 32, rows)} <= sizes  # the head
assert all(p["proposals"] == 3 and 0 < p["time_us"] <= p["first_time_us"]
           for p in table["products"])

def write(name, **changes):
    json.dump({**table, **changes}, open(name, "w"))

def changed(**changes):
    first, *others = json.loads(json.dumps(table["products"]))
    return [{**first, **changes}, *others]

# In the emulated cuBLASLt, the lower half of an algorithm's sixth word is the number of parts into
# which k is split. The next word says how the parts are added.
def split(product, splits, reduction):
    words = [product["algorithm"][i:i + 16] for i in range(0, 128, 16)]
    words[5] = words[5][:8] + f"{splits:08x}"
    words[6] = f"{reduction:016x}"
    return {**product, "algorithm": "".join(words)}

write("split.json", products=[split(p, 3, 2) for p in table["products"]])
write("atomic.json", products=[split(p, 2, 1) for p in table["products"]])
write("device.json", device="another GPU")
write("library.json", cublaslt=1)
write("foreign.json", products=changed(k=table["products"][0]["k"] - 1))
write("bytes.json", products=changed(algorithm="0" * 128))
open("text.json", "w").write("{")
PYTHON

# Each rank uses the table's algorithms, which split k and therefore add in another order. So the
# weights must differ from those of `plain`.
same split --comm nccl --tuned split.json
same split --comm mpi --tuned split.json
same split --comm nccl --stage 3 --tuned split.json
grep -q '"tuned":"split.json"' run.jsonl || fail "the header does not name the table"
! cmp -s kept/plain.safetensors kept/split.safetensors || fail "the table changed nothing"
alone "${run[@]}" --device cuda --tuned tuned.json

# Without a table, rank 0 measures the algorithms, and all ranks use rank 0's choice. The log and
# the checkpoint contain the digest of this choice. A resumed run keeps the choice.
measured=("${run[@]}" --tune on --device cuda --eval-every 0 --log run.jsonl --checkpoint measured)
digest() { sed -n '/"type":"'"$1"'"/s/.*"tuned_digest":"\([^"]*\)".*/\1/p' run.jsonl; }
ranks 2 "${measured[@]}" --steps 2 --resume-changed steps
grep -q 'the algorithms of [0-9]* products were measured' stderr.log || fail "$(cat stderr.log)"
grep -q 'planned and measured are equal' stdout.log || fail "$(cat stdout.log)"
[[ $(digest header) == *' bytes with digest '* ]] || fail "$(head -n 1 run.jsonl)"
grep -q "\"tuned\": *\"$(digest header)\"" measured/*/manifest.json || fail "not in the manifest"
alone "${measured[@]}" --resume-changed steps
! grep -q 'were measured\|was not interrupted' stderr.log || fail "$(cat stderr.log)"
[[ $(digest resume) == "$(digest header)" ]] || fail "the resumed run has another table"
alone "${measured[@]}" --steps 4 --resume-changed steps --tuned split.json
grep -q 'tuned is .*, but was .* was not interrupted' stderr.log || fail "$(cat stderr.log)"

refused() {
  expect "$1" mpirun -n 2 "$train_gpt" "${run[@]}" --device cuda --tuned "$2"
}
refused 'device.json: the table is of another GPU, and this is emulated' device.json
refused 'library.json: the table is of cuBLASLt 1, and this is 1' library.json
refused 'text.json: is not valid JSON: it ends early' text.json
refused 'foreign.json: the algorithm for the product .* was proposed for another' foreign.json
refused 'bytes.json: the algorithm for the product .*not initialised' bytes.json
refused 'atomic.json: the algorithm for the product .* differ from run to run' atomic.json

# Weights that were trained on a GPU generate text on the GPU and on the CPU.
alone "${run[@]}" --device cuda --sample 5 --save saved.safetensors
[[ -s stdout.log ]] || fail "no sample"
"$generate" saved.safetensors --device cuda --prompt 'int ' --tokens 10 > cuda.txt
"$generate" saved.safetensors --device cpu --prompt 'int ' --tokens 10 > cpu.txt
[[ $(wc -c < cuda.txt) == 15 && $(wc -c < cpu.txt) == 15 ]] || fail "$(cat cuda.txt cpu.txt)"
