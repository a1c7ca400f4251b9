#!/usr/bin/env bash
# The `checkpoint` program as users run it: inspect shows runs, verify finds damage, diff finds
# differences, export writes the same weights as --save, and imported checkpoints resume with the
# bits of the run that they came from. Also tests bad input to the commands that read checkpoints.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
. "$TESSERA_SOURCE_DIR/tests/apps/checkpoint_tool.bash"

# Trains a GPT twice: the reference run on one rank, and another run on three ranks. Both save
# checkpoints in the middle and at the end.
run=(--data text.txt "${tiny[@]}" --eval-every 0 --threads 1 --warmup 2)
full=("${run[@]}" --steps 8)
mkdir half end out
alone "${full[@]}" --checkpoint a --checkpoint-every 4 --checkpoint-async off --log a.jsonl \
  --save end/model.safetensors
ranks 3 "${full[@]}" --checkpoint b --checkpoint-every 4 --checkpoint-async off --stage 3
# --save writes the weights only after a run's last step. So this run resumes after step 4 and ends
# after step 5, to save weights of the middle of training.
cp -r a middle
rm -r middle/step-000000008
alone "${full[@]}" --steps 5 --resume-changed steps --checkpoint middle --log middle.jsonl \
  --save half/model.safetensors

tool inspect a
says '^ +8 +complete +[0-9a-f]{32} +[0-9,]+ +1 rank, stage [0-3]$'
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
assert [c["step"] for c in listed] == [8, 4] and all(c["files_complete"] for c in listed)
one = json.load(open("tool.log"))
assert one["digest"] == listed[0]["digest"] and one["step"] == 8 and one["skipped"] == 0
assert one["layout"]["ranks"] == 3 and len(one["files"]) == 3 and one["run"]["lr"] == "0.001"
table = [t for t in one["tensors"] if (t["name"], t["kind"]) == ("wte.weight", "exp_avg")][0]
assert table["dtype"] == "F32" and table["shape"] == [256, 16] and table["elements"] == 4096
assert one["weights"]["n_head"] == "2" and one["bits"]["threads"] == "1"
PYTHON
mkdir scored
alone "${run[@]}" --steps 4 --eval-every 4 --save scored/model.safetensors --save-best \
  --checkpoint scored/saved
tool inspect scored/saved/step-000000004
says '^  best +[0-9.]+ at step 4$'
tool inspect scored/saved/step-000000004 --json
"$python" - << 'PYTHON'
import json
best = json.load(open("tool.log"))["best"]
saved = json.load(open("scored/saved/step-000000004/manifest.json"))["best"]
assert best["step"] == 4 and best.items() <= saved.items() and "evaluated" in best
PYTHON
tool verify a
[[ $(grep -c ': whole, ' tool.log) == 2 ]] || fail "$(cat tool.log)"

# diff finds no difference between ranks or stages, and finds differences between steps.
tool diff a b
says '^[0-9]+ tensors are equal, 0 differ$'
tool diff a/step-000000004 b/step-000000004
status=0
"$checkpoint" diff a/step-000000004 b > tool.log || status=$?
[[ $status == 1 ]] || fail "exit code $status of a diff across steps"
number='-?[0-9.e-]+'
says "^  wte.weight/value: 4,096 of 4,096 elements, the first at \[0, 0\]: $number and $number\$"
says '^  ln_f.bias/updates: 1 of 1 element, the first at \[\]: 4 and 8$'
says '^  step: 4 and 8$'

# export writes exactly the file that --save writes at that step.
tool export b out/model.safetensors
cmp out/model.safetensors end/model.safetensors
cmp out/config.json end/config.json
tool export middle/step-000000005 out/model.safetensors
cmp out/model.safetensors half/model.safetensors
tool export a/step-000000004 out/model.safetensors
cmp -s out/model.safetensors half/model.safetensors && fail "two steps have the same weights"
must_work "$generate" --model out --prompt 'a' --tokens 3
[[ -s stdout.log ]] || fail "nothing generated"

# If weights are imported with moments, the run resumes with the bits of the original run.
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

# An import without --moments sets the moments to zero. When a run resumes from an import, only
# settings that the weights file determines are compared.
tool import out zero --step 3
mkdir again
tool export zero again/model.safetensors
cmp out/model.safetensors again/model.safetensors
cmp out/config.json again/config.json
"$checkpoint" diff zero a/step-000000004 > tool.log && fail "zeros are no moments"
says '^28 tensors are equal, 84 differ$'
says '^  wte.weight/updates: 1 of 1 element, the first at \[\]: 0 and 4$'
expect 'of model.safetensors, the origin of zero/step-000000003: model.heads is 4 instead of 2; ' \
  "$train_gpt" "${full[@]}" --heads 4 --checkpoint zero
alone "${full[@]}" --steps 4 --lr 0.5 --seed 7 --checkpoint zero
tool import out sgd --optimizer sgd
tool inspect sgd/step-000000000
says 'momentum_buffer'
alone "${full[@]}" --steps 1 --optimizer sgd --checkpoint sgd
tool import out plain --optimizer plain-sgd
alone "${full[@]}" --steps 1 --optimizer sgd --beta1 0 --checkpoint plain
status=0
cp a.jsonl refused.jsonl
"$train_gpt" "${full[@]}" --resume plain/step-000000000 --log refused.jsonl > stdout.log \
  2> stderr.log || status=$?
[[ $status == 2 ]] || fail "exit code $status: AdamW went on from the state of SGD"
grep -q 'it has no .*/exp_avg, which the run has; expected the optimizer and' stderr.log ||
  fail "$(cat stderr.log)"
cmp a.jsonl refused.jsonl || fail "a refused run has changed an older log"

# No tensor shows the epsilon of the norms, so an import records it unless it is the default. A run
# with a different epsilon is refused, with an error that gives both (the default as "not set"). A
# run without flags for sizes takes the sizes and the epsilon of the weights file.
mkdir epsilon
cp out/model.safetensors epsilon
sed 's/"layer_norm_epsilon": [^,]*/"layer_norm_epsilon": 1e-06/' out/config.json \
  > epsilon/config.json
tool import out usual
expect 'model.epsilon is 1e-06 but not set in the checkpoint; ' "$train_gpt" "${full[@]}" \
  --init epsilon --checkpoint usual
tool import epsilon/model.safetensors kept
expect 'model.epsilon is not set but 1e-06 in the checkpoint; ' "$train_gpt" "${full[@]}" \
  --checkpoint kept
alone --data text.txt --init epsilon --global-batch 12 --micro-batch 2 --threads 1 --steps 2 \
  --eval-every 0 --checkpoint kept
rm epsilon/config.json
tool export kept epsilon/again.safetensors
grep -q '"layer_norm_epsilon": 1e-06' epsilon/config.json || fail "$(cat epsilon/config.json)"
rm -r kept

# Exports, imports and resumes other models: image classifiers, which have momentum and running
# statistics, and recommenders.
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
# Importing and exporting weights keeps all values, including num_batches_tracked of batch norms.
tool import resnet-2.safetensors resnet-zero --optimizer sgd
tool export resnet-zero resnet-back.safetensors
cmp resnet-2.safetensors resnet-back.safetensors
expect 'model.name is resnet32 instead of resnet20' "$train_resnet" \
  --batch 12 --micro-batch 4 --steps 5 --model resnet32 --checkpoint resnet-zero
others "$train_recommender" recommender --batch 60 --micro-batch 12 --factors 10 --threads 1
# The exported weights equal the saved ones, except for ids and histories, which checkpoints do not
# have. A warning says that recommend needs them.
tool export recommender recommender-exported.safetensors
grep -q 'recommender-exported.safetensors is without the ids and histories' stderr.log ||
  fail "$(cat stderr.log)"
must_work "$train_recommender" --batch 60 --micro-batch 12 --factors 10 --threads 1 --steps 5 \
  --checkpoint recommender --save late.safetensors
cmp late.safetensors recommender.safetensors  # with ids and histories
edit_safetensors recommender.safetensors recommender-weights.safetensors \
  'tensors = {n: t for n, t in tensors.items() if t[0] == "F32"}'
edit_safetensors recommender-exported.safetensors recommender-same.safetensors ''
cmp recommender-weights.safetensors recommender-same.safetensors
tool import recommender.safetensors recommender-ids --optimizer adam
tool inspect recommender-ids --json
expect 'it has no tensor "ids.users"' "$TESSERA_BIN/recommend" recommender-exported.safetensors \
  --user u1
# A checkpoint is not a file of weights. The errors say how to get weights from it.
hint='expected weights; write its weights to a file: checkpoint export'
expect "a/step-000000008 is a checkpoint, $hint a/step-000000008 model.safetensors" \
  "$train_gpt" "${full[@]}" --init a/step-000000008
read -ra command < <(grep -o 'export .*' stderr.log)
tool "${command[@]}"
cmp model.safetensors end/model.safetensors
rm model.safetensors config.json
expect "a is a folder of checkpoints, $hint a model" "$generate" a
expect "resnet is a folder of checkpoints, $hint resnet mod" "$TESSERA_BIN/predict" resnet x.png
expect "resnet is a folder of checkpoints, $hint" "$TESSERA_BIN/train_resnet" --init resnet
expect 'recommender is a .*, expected weights; give the file that --save of its run wrote' \
  "$TESSERA_BIN/recommend" recommender u1
# A run can begin with the exported weights.
must_work "$train_recommender" --batch 60 --micro-batch 12 --factors 10 --threads 1 --steps 1 \
  --init recommender-exported.safetensors

# A checkpoint may have more files than a process may have open.
mkdir wide
alone --data text.txt --layers 1 --heads 2 --width 96 --context 16 --global-batch 2 \
  --micro-batch 2 --steps 1 --eval-every 0 --save wide/model.safetensors
tool import wide/model.safetensors many --shard-bytes 2048
[[ $(ls many/step-000000000 | wc -l) -gt 400 ]] || fail "few files: $(ls many/step-000000000)"
(ulimit -n 300 && "$checkpoint" verify many) > tool.log 2>&1 || fail "$(cat tool.log)"
# If a checkpoint cannot be read, here because the limit of open files is too low, it is not called
# damaged.
checkpoint=few_files
few_files() (ulimit -n 100 && "$TESSERA_BIN/checkpoint" "$@")
one=many/step-000000000
for command in "verify many" "verify $one" "inspect many" "inspect many --json"; do
  read -ra words <<< "$command"
  fails 1 "$one: cannot be checked: $one/shard-.*: cannot be opened: Too many open files" \
    "${words[@]}"
  ! grep -qE 'not whole|damaged|false' tool.log || fail "$(cat tool.log)"
  grep -qE 'cannot be checked|"files_complete": null' tool.log || fail "$(cat tool.log)"
done
checkpoint=$TESSERA_BIN/checkpoint

# The tool's memory stays far below the model's size. The model has 256 MiB of weights, in a sparse
# file that reads as zeros.
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

# A run may remove old checkpoints while they are read. They are not called damaged.
mkdir rotated
for step in {10..19}; do cp -r a/step-000000008 "rotated/step-0000000$step"; done
rotate() {
  local step=19
  while [[ ! -e stop ]]; do
    step=$((step + 1))
    cp -r a/step-000000008 rotated/next
    mv rotated/next "rotated/$(printf 'step-%09d' $step)"
    mv "rotated/$(printf 'step-%09d' $((step - 10)))" rotated/old.partial
    rm -r rotated/old.partial
  done
}
# The checkpoint of step 1 stays, so that there is always one left to read.
cp -r a/step-000000008 rotated/step-000000001
rotate &
job=$!
trap 'touch stop; wait; rm -rf "$work"' EXIT  # ends `rotate` also after a failure
for _ in {1..20}; do
  for command in verify inspect; do
    tool $command rotated
    ! grep -qE 'not whole|damaged' tool.log || fail "$(cat tool.log)"
  done
done
touch stop
wait $job

# Damage is found, and the message says where.
cp -r a damaged
printf x | dd of="$(ls damaged/step-000000008/shard-*)" bs=1 seek=20000 conv=notrunc 2> dd.log
tool inspect damaged/step-000000008
# inspect does not read tensors, and must not say more than it has checked.
tool inspect damaged
says '^  8 +complete +[0-9a-f]{32}'
says 'sizes and headers of all files are right; checkpoint verify damaged also checks the digests'
! grep -qw whole tool.log || fail "$(cat tool.log)"
ln -s damaged "Ann's"  # a name that a shell reads only in quotes
tool inspect "Ann's"
says "checkpoint verify 'Ann'\\\\''s' also checks"
shard=damaged/step-000000008/shard-00001-of-00001.safetensors
fails 1 "1 of 2 checkpoints is not whole: $shard: elements .* of \"[a-z0-9_./]+\" were changed" \
  verify damaged
says '^damaged/step-000000008: not whole$'
says '^damaged/step-000000004: whole'
fails 1 'shard-00001-of-00001.safetensors: elements' verify damaged/step-000000008
fails 2 'shard-00001-of-00001.safetensors: elements' diff damaged/step-000000008 a
fails 2 'shard-00001-of-00001.safetensors: elements' export damaged/step-000000008 x.safetensors
[[ ! -e x.safetensors ]] || fail "damaged weights were exported"
"$checkpoint" export damaged out/model.safetensors > tool.log 2> stderr.log
grep -q 'damaged/step-000000008 is passed over' stderr.log || fail "$(cat stderr.log)"
says 'the weights of damaged/step-000000004, after step 4'
tool diff damaged a/step-000000004
grep -q 'damaged/step-000000008 is passed over' stderr.log || fail "$(cat stderr.log)"
says '^a: damaged/step-000000004$'
truncate -s 1000 damaged/step-000000004/shard-*
tool inspect damaged
says '^  4 +damaged$'
says '^damaged/step-000000004 is not whole: .*it has 1000 bytes, the manifest says [0-9]+$'
rm damaged/step-000000004/manifest.json
fails 1 'manifest.json' verify damaged/step-000000004
fails 2 'manifest.json' inspect damaged/step-000000004

# Bad input is refused.
fails 2 'no command is given'
fails 2 "unknown command 'frobnicate'" frobnicate
fails 2 'did you mean --json' inspect a --jsno
fails 2 'checkpoint inspect DIR' inspect
fails 2 'checkpoint verify DIR' verify
fails 2 'checkpoint diff A B' diff a
fails 2 'checkpoint export DIR FILE' export a
ln -s circle circle  # what is below it cannot be examined, not even by root
for command in inspect verify; do
  fails 2 'nowhere: there is no such folder' "$command" nowhere
  fails 2 'circle/a: cannot be read: Too many levels of symbolic links' "$command" circle/a
  fails 2 'half: it has no checkpoints' "$command" half
  fails 2 'text.txt is a file, expected the folder of a checkpoint' "$command" text.txt
done
fails 2 'nowhere: there is no such folder' diff a nowhere
fails 2 'half: it has no checkpoints' export half x.safetensors
fails 2 'is in the checkpoint' export a a/step-000000008/x.safetensors
fails 2 'is in the checkpoint .*, which would be damaged' export a a/step-000000004/manifest.json
# A run could not write its checkpoint of step 99 if an output had this name.
later='may be where a run with its checkpoints in .*/a writes one; give another name'
fails 2 "a/step-000000099 $later" export a a/step-000000099
fails 2 "a/step-000000099/x $later" export a a/step-000000099/x
expect "--save a/step-000000099 $later" "$train_gpt" --data text.txt "${tiny[@]}" --steps 1 \
  --save a/step-000000099
mkdir a/step-000000004/deeper
fails 2 'is in the checkpoint .*/a/step-000000004,' export b a/step-000000004/deeper/x.safetensors
rmdir a/step-000000004/deeper
# A folder's lock is not replaced, even if no checkpoint has been written there yet.
mkdir locked
touch locked/lock
for folder in a b locked; do
  inode=$(stat -c %i "$folder/lock")
  fails 2 "FILE $folder/lock is the lock of the checkpoints in .*/$folder" export b "$folder/lock"
  [[ ! -s $folder/lock && $(stat -c %i "$folder/lock") == "$inode" ]] || fail "$folder/lock changed"
done
fails 2 'none/x.safetensors: cannot be written: the folder none does not exist' \
  export a none/x.safetensors
# Outputs are checked before the checkpoint is read.
fails 2 'none/x.safetensors: cannot be written' export damaged none/x.safetensors
fails 2 'half: cannot be written' export a half
mkdir other
echo '{"model_type": "bert"}' > other/config.json
fails 2 'other/config.json: already exists and does not' export a other/model.safetensors
for path in out/config.json out//config.json; do
  fails 2 "$path: a weights file cannot be called config.json" export a $path
done
