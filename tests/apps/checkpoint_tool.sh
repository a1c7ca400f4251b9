#!/usr/bin/env bash
# checkpoint as users run it: what it shows of runs, what it finds damaged or different, weights
# that it exports as --save writes them, and imports that go on with the bits of the run that they
# came from. And bad input to every command.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
checkpoint=$TESSERA_BIN/checkpoint
train_resnet=$TESSERA_BIN/train_resnet
train_recommender=$TESSERA_BIN/train_recommender
python=${TESSERA_PEER_PYTHON:-python3}

tool() { "$checkpoint" "$@" > tool.log 2> stderr.log || fail "exit code $?: $*: $(cat stderr.log)"; }
# says PATTERN: what the tool has printed.
says() { grep -qE -- "$1" tool.log || fail "no '$1' in: $(cat tool.log)"; }
# fails CODE PATTERN ARGUMENT...: with this exit code, and one line on standard error.
fails() {
  local code=$1 pattern=$2 status=0
  shift 2
  "$checkpoint" "$@" > tool.log 2> stderr.log || status=$?
  [[ $status == "$code" ]] || fail "exit code $status instead of $code: $*: $(cat stderr.log)"
  grep -qE -- "$pattern" stderr.log || fail "not '$pattern' from: $*: $(cat stderr.log)"
  [[ $(wc -l < stderr.log) == 1 ]] || fail "more than one line from: $*: $(cat stderr.log)"
}
digest() {
  sed -nE "s/.*\"type\":\"checkpoint\",\"step\":$2,.*\"digest\":\"([0-9a-f]+)\".*/\1/p" "$1"
}

# The optimizer's state in a checkpoint as a file of PyTorch's names, read and written by Python's
# own means: moments.py CHECKPOINT FILE PREFIX
cat > moments.py << 'PYTHON'
import json, struct, sys
folder, path, prefix = sys.argv[1:]
manifest = json.load(open(folder + "/manifest.json"))
files = [open(folder + "/" + f["name"], "rb").read() for f in manifest["files"]]
tensors = manifest["tensors"]
values = [b""] * len(tensors)
for tensor, begin, end, file, offset, digest in manifest["ranges"]:
    size = 8 if tensors[tensor]["dtype"] == "I64" else 4
    values[tensor] += files[file][offset:offset + (end - begin) * size]
header, data = {}, b""
for tensor, value in zip(tensors, values):
    kind = tensor["kind"]
    if kind == "updates":  # a float of 32 bits, as PyTorch counts steps
        kind, value = "step", struct.pack("<f", struct.unpack("<q", value)[0])
    elif kind not in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        continue
    header[f"{prefix}{tensor['name']}.{kind}"] = {
        "dtype": "F32", "shape": tensor["shape"], "data_offsets": [len(data), len(data + value)]}
    data += value
text = json.dumps(header).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON

# edit.py FROM TO CODE: a safetensors file after CODE has changed `tensors`, name -> [dtype, shape,
# bytes].
cat > edit.py << 'PYTHON'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size = int.from_bytes(data[:8], "little")
header, data = json.loads(data[8:8 + size]), data[8 + size:]
metadata = header.pop("__metadata__", None)
tensors = {name: [e["dtype"], e["shape"], data[slice(*e["data_offsets"])]]
           for name, e in header.items()}
exec(sys.argv[3])
header, data = {"__metadata__": metadata} if metadata else {}, b""
for name, (dtype, shape, value) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape,
                    "data_offsets": [len(data), len(data) + len(value)]}
    data += value
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON

# A GPT: the run, and another one on three ranks. Both save in the middle and at the end.
run=(--data text.txt "${tiny[@]}" --eval-every 0 --threads 1 --warmup 2)
full=("${run[@]}" --steps 8)
mkdir half end out
alone "${full[@]}" --checkpoint a --checkpoint-every 4 --checkpoint-async off --log a.jsonl \
  --save end/model.safetensors
ranks 3 "${full[@]}" --checkpoint b --checkpoint-every 4 --checkpoint-async off --stage 3
# --save in the middle: a run that a signal ends saves no weights, so one goes on with no steps left
# to differ in but their number.
cp -r a middle
rm -r middle/step-000000008
alone "${full[@]}" --steps 5 --resume-changed steps --checkpoint middle --log middle.jsonl \
  --save half/model.safetensors

tool inspect a
says '^ +8 +[0-9a-f]{32} +[0-9,]+ +1 rank, stage [0-3]$'
[[ $(grep -cE '[0-9a-f]{32}' tool.log) == 2 ]] || fail "$(cat tool.log)"
tool inspect b/step-000000008
says '^  layout +3 ranks, stage 3$'
says '^  digest +'"$(digest a.jsonl 8)"
says '^  wte.weight +exp_avg_sq +f32 +\[256, 16\] +4,096 +[0-9]+$'
says '^  h.1.attn.c_attn.weight +updates +i64 +\[\] +1 +1$'
says '^  n_head +2$'
tool inspect b --json
cp tool.log folder.json
tool inspect b/step-000000008 --json
"$python" - << 'PYTHON'
import json
listed = json.load(open("folder.json"))["checkpoints"]
assert [c["step"] for c in listed] == [8, 4] and all(c["whole"] for c in listed)
one = json.load(open("tool.log"))
assert one["digest"] == listed[0]["digest"] and one["step"] == 8 and one["skipped"] == 0
assert one["layout"]["ranks"] == 3 and len(one["files"]) == 3 and one["run"]["lr"] == "0.001"
table = [t for t in one["tensors"] if (t["name"], t["kind"]) == ("wte.weight", "exp_avg")][0]
assert table["dtype"] == "F32" and table["shape"] == [256, 16] and table["elements"] == 4096
assert one["weights"]["n_head"] == "2" and one["bits"]["threads"] == "1"
PYTHON
tool verify a
[[ $(grep -c ': whole, ' tool.log) == 2 ]] || fail "$(cat tool.log)"

# Ranks and stages make no difference, steps do.
tool diff a b
says '^[0-9]+ tensors are equal, 0 differ$'
tool diff a/step-000000004 b/step-000000004
status=0
"$checkpoint" diff a/step-000000004 b > tool.log || status=$?
[[ $status == 1 ]] || fail "exit code $status of a diff across steps"
says '^  wte.weight/value: 4,096 of 4,096 elements, the first at \[0, 0\]: -?[0-9.e-]+ and -?[0-9.e-]+$'
says '^  ln_f.bias/updates: 1 of 1 elements, the first at \[\]: 4 and 8$'
says '^  step: 4 and 8$'

# What export writes is what --save writes at that step, as a whole.
tool export b out/model.safetensors
cmp out/model.safetensors end/model.safetensors
cmp out/config.json end/config.json
tool export middle/step-000000005 out/model.safetensors
cmp out/model.safetensors half/model.safetensors
tool export a/step-000000004 out/model.safetensors
cmp -s out/model.safetensors half/model.safetensors && fail "two steps have the same weights"
must_work "$generate" --model out --prompt 'a' --tokens 3
[[ -s stdout.log ]] || fail "nothing generated"

# Imported with its moments the run goes on as if nobody had taken it apart.
"$python" moments.py a/step-000000004 moments.safetensors transformer.
tool import out/model.safetensors imported --moments moments.safetensors --shard-bytes 20000
says 'imported/step-000000004: 112 tensors of model.safetensors'
[[ $(find imported -name 'shard-*' | wc -l) -gt 5 ]] || fail "$(ls imported/*)"
tool verify imported
tool diff imported a/step-000000004
says '^112 tensors are equal, 0 differ$'
tool inspect imported
says 'imported from "model.safetensors"'
ranks 2 "${full[@]}" --checkpoint imported --log imported.jsonl --stage 2
grep -q 'imported/step-000000004 was imported from model.safetensors, which fixes .*model.heads' \
  stderr.log || fail "$(cat stderr.log)"
[[ $(digest imported.jsonl 8) == $(digest a.jsonl 8) ]] || fail "another digest after the import"
[[ $(digest a.jsonl 8) =~ ^[0-9a-f]{32}$ ]] || fail "$(cat a.jsonl)"

# Without moments they are zero, and only what the file fixes is compared.
tool import out zero --step 3
"$checkpoint" diff zero a/step-000000004 > tool.log && fail "zeros are no moments"
says '^28 tensors are equal, 84 differ$'
says '^  wte.weight/updates: 1 of 1 elements, the first at \[\]: 0 and 4$'
expect 'model.heads is 4, and 2 in model.safetensors, which zero/step-000000003 was imported from' \
  "$train_gpt" "${full[@]}" --heads 4 --checkpoint zero
alone "${full[@]}" --steps 4 --lr 0.5 --seed 7 --checkpoint zero
tool import out sgd --optimizer sgd
tool inspect sgd/step-000000000
says 'momentum_buffer'
alone "${full[@]}" --steps 1 --optimizer sgd --checkpoint sgd
tool import out plain --optimizer plain-sgd
alone "${full[@]}" --steps 1 --optimizer sgd --beta1 0 --checkpoint plain
status=0
"$train_gpt" "${full[@]}" --resume plain/step-000000000 > stdout.log 2> stderr.log || status=$?
[[ $status == 2 ]] || fail "exit code $status: AdamW went on from the state of SGD"
grep -q 'it has no .*/exp_avg, which the run has' stderr.log || fail "$(cat stderr.log)"

# Classifiers of images, with momentum and running statistics; and recommenders.
others() {
  local program=$1 name=$2
  shift 2
  must_work "$program" "$@" --steps 5 --checkpoint "$name" --checkpoint-every 2 \
    --checkpoint-async off --log "$name.jsonl" --save "$name.safetensors"
  tool export "$name" "$name-exported.safetensors"
  tool export "$name/step-000000002" "$name-2.safetensors"
  "$python" moments.py "$name/step-000000002" "$name-moments.safetensors" ''
  tool import "$name-2.safetensors" "$name-imported" --moments "$name-moments.safetensors"
  tool diff "$name-imported" "$name/step-000000002"
  must_work mpirun -n 2 "$program" "$@" --steps 5 --checkpoint "$name-imported" --stage 3 \
    --log "$name-imported.jsonl" --save "$name-again.safetensors"
  cmp "$name.safetensors" "$name-again.safetensors"
  [[ $(digest "$name-imported.jsonl" 5) == $(digest "$name.jsonl" 5) ]] || fail "other bits: $name"
}
others "$train_resnet" resnet --batch 12 --micro-batch 4 --eval-every 0 --threads 1
cmp resnet.safetensors resnet-exported.safetensors
"$python" - << 'PYTHON'
import struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
open("grey.png", "wb").write(
    b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", 8, 8, 8, 2, 0, 0, 0)) +
    chunk(b"IDAT", zlib.compress((b"\0" + b"\x7f" * 24) * 8)) + chunk(b"IEND", b""))
PYTHON
must_work "$TESSERA_BIN/predict" resnet-2.safetensors grey.png
# What an import is made of comes out again, with the number of batches.
tool import resnet-2.safetensors resnet-zero --optimizer sgd
tool export resnet-zero resnet-back.safetensors
cmp resnet-2.safetensors resnet-back.safetensors
expect 'model.name is resnet32, and resnet20 in resnet-2.safetensors' "$train_resnet" \
  --batch 12 --micro-batch 4 --steps 5 --model resnet32 --checkpoint resnet-zero
others "$train_recommender" recommender --batch 60 --micro-batch 12 --factors 10 --threads 1
# The same weights, without ids and histories, which no checkpoint has.
"$python" edit.py recommender.safetensors recommender-weights.safetensors \
  'tensors = {n: t for n, t in tensors.items() if t[0] == "F32"}'
"$python" edit.py recommender-exported.safetensors recommender-same.safetensors ''
cmp recommender-weights.safetensors recommender-same.safetensors
tool import recommender.safetensors recommender-ids --optimizer adam
tool inspect recommender-ids --json
expect 'it has no tensor "ids.users"' "$TESSERA_BIN/recommend" recommender-exported.safetensors \
  --user u1

# Memory stays far below the model's: 256 MiB of weights, in a file that has zeros where nothing was
# written.
mkdir large
"$python" - << 'PYTHON'
import json, struct
vocab, width = 1 << 20, 64
shapes = {"wte.weight": [vocab, width], "wpe.weight": [8, width], "ln_f.weight": [width],
          "ln_f.bias": [width]}
for norm in ("ln_1", "ln_2"):
    shapes.update({f"h.0.{norm}.weight": [width], f"h.0.{norm}.bias": [width]})
for name, rows, columns in (("attn.c_attn", 1, 3), ("attn.c_proj", 1, 1), ("mlp.c_fc", 1, 4),
                            ("mlp.c_proj", 4, 1)):
    shapes.update({f"h.0.{name}.weight": [rows * width, columns * width],
                   f"h.0.{name}.bias": [columns * width]})
header, end = {}, 0
for name, shape in shapes.items():
    size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
    end += size
text = json.dumps(header).encode()
with open("large/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + end)
json.dump({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": width, "n_positions": 8,
           "vocab_size": vocab}, open("large/config.json", "w"))
PYTHON
"$python" - "$checkpoint" << 'PYTHON'
import os, resource, subprocess, sys
weights = os.path.getsize("large/model.safetensors")
os.mkdir("written")
for command in (["import", "large", "kept", "--optimizer", "plain-sgd", "--shard-bytes", "16MiB"],
                ["export", "kept", "written/model.safetensors"], ["diff", "kept", "kept"]):
    subprocess.run([sys.argv[1], *command], check=True, stdout=subprocess.DEVNULL)
    peak = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak < weights / 3, f"{command[0]} holds {peak} bytes of a model of {weights}"
assert os.path.getsize("written/model.safetensors") > weights - 4096
PYTHON
rm -r large kept written

# Damage is found, and says where.
cp -r a damaged
printf x | dd of="$(ls damaged/step-000000008/shard-*)" bs=1 seek=20000 conv=notrunc 2> dd.log
tool inspect damaged/step-000000008
fails 1 '1 of 2 checkpoints are not whole: damaged/step-000000008/shard-00001-of-00001.safetensors: elements \[[0-9]+, [0-9]+\) of "[a-z0-9_./]+" were changed' verify damaged
says '^damaged/step-000000008: not whole$'
says '^damaged/step-000000004: whole'
fails 1 'shard-00001-of-00001.safetensors: elements' verify damaged/step-000000008
fails 2 'shard-00001-of-00001.safetensors: elements' diff damaged/step-000000008 a
fails 2 'shard-00001-of-00001.safetensors: elements' export damaged/step-000000008 x.safetensors
[[ ! -e x.safetensors ]] || fail "damaged weights were exported"
"$checkpoint" export damaged out/model.safetensors > tool.log 2> stderr.log
grep -q 'damaged/step-000000008 is passed over' stderr.log || fail "$(cat stderr.log)"
says 'the weights of damaged/step-000000004, after step 4'
truncate -s 1000 damaged/step-000000004/shard-*
tool inspect damaged
says '^damaged/step-000000004 is not whole: .*it has 1000 bytes, the manifest says [0-9]+$'
rm damaged/step-000000004/manifest.json
fails 1 'manifest.json' verify damaged/step-000000004
fails 2 'manifest.json' inspect damaged/step-000000004

# Bad input.
fails 2 'no command is given'
fails 2 "unknown command 'frobnicate'" frobnicate
fails 2 'did you mean --json' inspect a --jsno
fails 2 'checkpoint inspect DIR' inspect
fails 2 'checkpoint verify DIR' verify
fails 2 'checkpoint diff A B' diff a
fails 2 'checkpoint export DIR FILE' export a
fails 2 'checkpoint import FILE DIR' import out
for command in inspect verify; do
  fails 2 'nowhere: there is no such folder' "$command" nowhere
  fails 2 'half: it has no checkpoints' "$command" half
  fails 2 'text.txt: there is no such folder' "$command" text.txt
done
fails 2 'nowhere: there is no such folder' diff a nowhere
fails 2 'half: it has no checkpoints' export half x.safetensors
fails 2 'is in the checkpoint' export a a/step-000000008/x.safetensors
fails 2 'none/x.safetensors' export a none/x.safetensors
fails 2 'half: cannot be written' export a half
mkdir other
echo '{"model_type": "bert"}' > other/config.json
fails 2 'other/config.json: it is there and is not a GPT' export a other/model.safetensors
fails 2 'nowhere' import nowhere new
fails 2 'text.txt: ' import text.txt new
fails 2 'is in out, where the checkpoint is to be written' import out/model.safetensors out
fails 2 'a: it has a checkpoint of step 4 already' import out a --step 4
fails 2 'a/step-000000008 is there, and a run would go on from it' import out a --step 5
fails 2 'step is -1' import out new --step -1
fails 2 'expected one of adamw, adam, sgd' import out new --optimizer lion
fails 2 'shard-bytes is 100, expected at least 2048' import out new --shard-bytes 100
fails 2 'it has exp_avg, exp_avg_sq, and sgd keeps momentum_buffer' import out new \
  --moments moments.safetensors --optimizer sgd
mkdir bare
cp out/model.safetensors bare
fails 2 'bare/config.json is missing' import bare new
# refused CODE PATTERN: moments after CODE.
refused() {
  "$python" edit.py moments.safetensors wrong.safetensors "$1"
  fails 2 "$2" import out new --moments wrong.safetensors
}
name="'transformer.h.0.ln_1.weight"
refused "del tensors[$name.exp_avg']" 'it has no tensor "h.0.ln_1.weight.exp_avg"'
refused "del tensors[$name.step']" 'it has no tensor "h.0.ln_1.weight.step"'
refused "tensors['h.9.ln_1.weight.exp_avg'] = tensors[$name.exp_avg']" \
  '"h.9.ln_1.weight.exp_avg" is of a parameter that out/model.safetensors has not'
refused "tensors[$name.max_exp_avg_sq'] = tensors[$name.exp_avg']" 'max_exp_avg_sq" is no state of'
refused "tensors['h.0.ln_1.weight.exp_avg'] = tensors[$name.exp_avg']" 'with and without the prefix'
refused "tensors[$name.momentum_buffer'] = tensors[$name.exp_avg']" 'the state of one optimizer'
refused "tensors[$name.exp_avg'][1] = [4, 4]" 'shape is \[4, 4\], expected \[16\]'
refused "tensors[$name.exp_avg_sq'][2] = struct.pack('<16f', *[-1.0] * 16)" 'element 0 is -1'
for step in -1 1.5 nan inf; do
  refused "tensors[$name.step'][2] = struct.pack('<f', float('$step'))" \
    'h.0.ln_1.weight.step" is .*expected a whole number'
done
refused "tensors[$name.step'][2] = struct.pack('<f', 9)" 'h.0.ln_1.weight has 9; give the run'
[[ ! -e new/step-000000004 ]] || fail "a checkpoint of what was refused"
"$python" edit.py moments.safetensors counts.safetensors \
  "tensors[$name.step'][2] = struct.pack('<f', 9)"
tool import out counts --moments counts.safetensors --step 4
"$checkpoint" diff counts a/step-000000004 > tool.log && fail "another count"
says '^  h.0.ln_1.weight/updates: 1 of 1 elements, the first at \[\]: 9 and 4$'
says '^111 tensors are equal, 1 differ$'
"$python" edit.py resnet-moments.safetensors uncounted.safetensors \
  'tensors = {n: t for n, t in tensors.items() if not n.endswith(".step")}'
fails 2 'has no step; give the run' import resnet-2.safetensors new --moments uncounted.safetensors
tool import resnet-2.safetensors uncounted --moments uncounted.safetensors --step 2
tool diff uncounted resnet/step-000000002

# The lines of the documentation that save PyTorch's state, run as they are.
if ! "$python" -c 'import torch, safetensors.torch' 2> import.log; then
  printf 'skipped, because Python has no torch and safetensors: the state that PyTorch saves\n'
  exit 0
fi
sed -n '/^```py$/,/^```$/p' "$TESSERA_SOURCE_DIR/docs/checkpoints.md" | sed '/^```/d' > save_state.py
grep -q 'def save_state' save_state.py || fail "the documentation has no save_state"
cat > train.py << 'PYTHON'
import json, sys, torch
from safetensors.torch import load_file, save_file
from save_state import save_state
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(7, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3))
for name, make in (("adamw", lambda p: torch.optim.AdamW(p, lr=0.01)),
                   ("sgd", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))):
    optimizer = make(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()
    save_file(model.state_dict(), f"{name}.safetensors")
    save_state(model, optimizer, f"{name}-state.safetensors")
    kept = optimizer.state_dict()["state"]
    expected = {("step" if k == "step" else k): v for k, v in kept[0].items()}
    saved = load_file(f"{name}-state.safetensors")
    assert all(torch.equal(saved[f"0.weight.{k}"], v) for k, v in expected.items()), saved.keys()
PYTHON
"$python" train.py
for name in adamw sgd; do
  step=()
  [[ $name == adamw ]] || step=(--step 5)
  tool import "$name.safetensors" "torch-$name" --moments "$name-state.safetensors" "${step[@]}"
  "$python" moments.py "torch-$name/step-000000005" back.safetensors ''
  "$python" - "$name" << 'PYTHON'
import sys, torch
from safetensors.torch import load_file
before, after = load_file(sys.argv[1] + "-state.safetensors"), load_file("back.safetensors")
assert all(torch.equal(before[name], after[name]) for name in before), before.keys()
assert all(value == 5 for name, value in after.items() if name.endswith(".step"))
PYTHON
done
