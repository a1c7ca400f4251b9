#!/usr/bin/env bash
# Tests train_resnet and predict as users run them: equal losses and weights for one to three ranks
# at stages 2 and 3, the log's lines, the plan, weights that are saved and loaded again, labels of
# files, and bad input.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
train_gpt=$TESSERA_BIN/train_resnet  # the program that `alone` and `ranks` run
predict=$TESSERA_BIN/predict

# Python writes a folder of PNG files in two classes, bright and dark. A second folder has images of
# the model's size for validation.
python3 - << 'PYTHON'
import os, random, struct, zlib
def png(path, pixels, side):
    rows = b"".join(b"\0" + bytes(pixels[3 * side * y:3 * side * (y + 1)]) for y in range(side))
    def chunk(kind, data):
        return (struct.pack(">I", len(data)) + kind + data +
                struct.pack(">I", zlib.crc32(kind + data)))
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) +
                   chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
random.seed(1)
for name, low, high in (("bright", 160, 255), ("dark", 0, 95)):
    os.makedirs("pictures/" + name)
    for i in range(20):
        side = 20 + i
        png(f"pictures/{name}/{i:02}.png",
            [random.randint(low, high) for _ in range(3 * side * side)], side)
    os.makedirs("sized/val/" + name)
    png(f"sized/val/{name}/0.png", [random.randint(0, 255) for _ in range(3 * 16 * 16)], 16)
PYTHON
values() { losses "$1" | sed 's/,"images_per_s".*//'; }
equal() { diff <(values "$1") <(values "$2"); }
run=(--data pictures --image-size 16 --batch 12 --micro-batch 4 --steps 6 --eval-every 3
  --bucket-bytes 65536)
alone "${run[@]}" --log one.jsonl --save one.safetensors
grep -q 'planned and measured are equal on all ranks (1)' stdout.log || fail "$(cat stdout.log)"
for n in 2 3; do
  ranks "$n" "${run[@]}" --log "$n.jsonl" --save "$n.safetensors" --stage "$n"
  grep -q "planned and measured are equal on all ranks ($n)" stdout.log || fail "$(cat stdout.log)"
  equal one.jsonl "$n.jsonl" || fail "$n ranks trained differently"
  cmp one.safetensors "$n.safetensors"
done
alone "${run[@]}" --workers 3 --log workers.jsonl
equal one.jsonl workers.jsonl || fail "three workers prepared other images"
ranks 3 "${run[@]}" --sync-bn --schedule onecycle --label-smoothing 0.1 --augment off \
  --precision bf16 --trace trace.json --log other.jsonl
grep -q 'equal on all ranks (3)' stdout.log || fail "$(cat stdout.log)"

python3 - << 'PYTHON'
import json
lines = [json.loads(line) for line in open("2.jsonl")]
part = ["step"] * 3 + ["eval"]
assert [l["type"] for l in lines] == ["header"] + part + part + ["summary"]
header = lines[0]
assert header["program"] == "train_resnet" and header["format"] == "folder"
assert header["model"]["classes"] == 2 and header["model"]["parameters"] == 271954
assert header["optimizer"] == "sgd" and header["nesterov"] and header["steps_per_epoch"] == 3
steps = [l for l in lines if l["type"] == "step"]
for step in steps:
    assert list(step) == ["type", "step", "loss", "grad_norm", "lr", "images_per_s", "step_ms",
                          "comm_exposed_ms", "epoch", "data_exposed_ms"]
assert [s["epoch"] for s in steps] == [0, 0, 0, 1, 1, 1]
evaluation = [l for l in lines if l["type"] == "eval"][-1]
assert list(evaluation) == ["type", "step", "val_loss", "epoch", "top1", "top5"]
assert evaluation["epoch"] == 2 and evaluation["top5"] == 1 and 0 <= evaluation["top1"] <= 1
with open("one.safetensors", "rb") as file:
    names = json.loads(file.read(int.from_bytes(file.read(8), "little")))
assert names["layer2.0.downsample.1.running_var"]["shape"] == [32]
assert names["bn1.num_batches_tracked"] == {"dtype": "I64", "shape": [], "data_offsets":
                                            names["bn1.num_batches_tracked"]["data_offsets"]}
assert json.loads(names["__metadata__"]["tessera_image_model"])["classes"] == ["bright", "dark"]
PYTHON

alone "${run[@]}" --plan --log plan.jsonl
grep -q 'Memory of rank 0' stdout.log || fail "no plan"
[[ ! -e plan.jsonl ]] || fail "a plan wrote a log"
grep -q 'nothing is written for .*--log' stderr.log || fail "$(cat stderr.log)"

# Training begins from saved weights and running statistics. With a tiny learning rate, it must
# change the weights by less than 1e-6, and must still update the statistics.
alone "${run[@]}" --steps 1 --eval-every 0 --lr 1e-9 --weight-decay 0 --init one.safetensors \
  --save again.safetensors
python3 - << 'PYTHON'
import json, struct
def read(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__")
    return {name: struct.unpack(f"<{(e['data_offsets'][1] - e['data_offsets'][0]) // 4}f",
                                data[slice(*e["data_offsets"])])
            for name, e in header.items() if e["dtype"] == "F32"}
before, after = read("one.safetensors"), read("again.safetensors")
assert before.keys() == after.keys() and len(before) == 65 + 2 * 21
for name in before:
    difference = max(abs(a - b) for a, b in zip(before[name], after[name]))
    if "running" in name:  # each of the three micro-batches updates these
        assert difference > 0, name
    else:
        assert difference < 1e-6, (name, difference)
PYTHON

# After enough training, the model distinguishes bright from dark.
alone "${run[@]}" --steps 30 --eval-every 30 --save model.safetensors --log long.jsonl
"$predict" model.safetensors pictures/bright/03.png pictures/dark/07.png > labels.txt
[[ $(sed -n 2p labels.txt) == *bright && $(sed -n 5p labels.txt) == *dark ]] ||
  fail "$(cat labels.txt)"
[[ $("$predict" --top 1 model.safetensors pictures/dark/07.png | wc -l) == 2 ]] || fail "--top 1"

# Names of classes are printed as they are, but no control character reaches the terminal.
edit_safetensors model.safetensors named.safetensors \
  'describe("tessera_image_model", "classes", ["sch\u00f6n \"a\"", "d\u001b[1m"])'
"$predict" named.safetensors pictures/bright/03.png > labels.txt
grep -qF $'%  sch\xc3\xb6n "a"' labels.txt || fail "$(cat labels.txt)"
grep -qF '%  d\u001b[1m' labels.txt || fail "$(cat labels.txt)"

# If an image has the model's size, predict and --eval-only prepare it in the same way. So the
# validation loss must follow from the probabilities that predict prints for the right classes.
cp -r pictures sized/train
alone "${run[@]}" --data sized --init one.safetensors --eval-only
"$predict" one.safetensors sized/val/bright/0.png sized/val/dark/0.png > labels.txt
python3 - << 'PYTHON'
import math, re
lines = open("labels.txt").read().splitlines()
right = [next(float(l.split()[0]) / 100 for l in lines[i + 1:i + 3] if l.endswith(name))
         for i, name in ((0, "bright"), (3, "dark"))]
loss = float(re.search("validation loss ([0-9.]+)", open("stdout.log").read())[1])
expected = -sum(math.log(p) for p in right) / 2
assert abs(loss - expected) < 2e-3, (loss, expected, lines)
PYTHON

# --eval-only normalises images with the mean in the file of weights, not with that of the data. So
# another mean in the file must change the result. --eval-only refuses data whose classes have other
# names than those of the weights or of the checkpoint.
alone "${run[@]}" --init one.safetensors --eval-only
mv stdout.log evaluated.txt
grep -q "top-1" evaluated.txt || fail "$(cat evaluated.txt)"
# Without --image-size, the images of a folder get the size for which the weights were trained.
sizeless=(--data pictures --batch 12 --micro-batch 4 --init one.safetensors --eval-only)
alone "${sizeless[@]}"
cmp stdout.log evaluated.txt || fail "another size than that of the weights: $(cat stderr.log)"
alone "${sizeless[@]}" --image-size 20
grep -q 'images of 20 x 20 x 3' stderr.log || fail "$(cat stderr.log)"
# If the file of --init is missing for one rank, the error names the file, although this rank does
# not know the size of the images.
fresh=("$train_gpt" "${sizeless[@]:0:6}" --steps 1 --init)
expect '^error: none.safetensors: cannot be opened: No such file or directory (rank 1)$' \
  mpirun -n 1 "${fresh[@]}" one.safetensors : -n 1 "${fresh[@]}" none.safetensors
edit_safetensors one.safetensors shifted.safetensors \
  'describe("tessera_image_model", "mean", [0.1, 0.1, 0.1])'
ranks 2 "${run[@]}" --init shifted.safetensors --eval-only
if cmp -s stdout.log evaluated.txt; then fail "the mean of the weights was ignored"; fi
alone "${run[@]}" --checkpoint saved
# The printed epoch is that of the run that saved the checkpoint. --batch does not change the epoch.
alone "${run[@]}" --checkpoint saved --eval-only --quiet
mv stdout.log evaluated.txt
grep -q '^step 6  epoch 2  ' evaluated.txt || fail "$(cat evaluated.txt)"
alone "${run[@]}" --checkpoint saved --eval-only --quiet --batch 8
cmp stdout.log evaluated.txt || fail "another batch: $(cat stdout.log)"
# --eval-only accepts a batch larger than the training data. Only training refuses it.
alone "${run[@]}" --checkpoint saved --eval-only --quiet --batch 5001
cmp stdout.log evaluated.txt || fail "a large batch: $(cat stdout.log)"
alone "${sizeless[@]:0:6}" --checkpoint saved --eval-only --quiet
cmp stdout.log evaluated.txt || fail "another size than that of the checkpoint: $(cat stdout.log)"
# A resumed run also takes the image size from the checkpoint. The size is read from the description
# of the weights, because an imported checkpoint does not have it among its settings.
resized() {
  alone "${sizeless[@]:0:6}" --eval-every 0 "${@:2}"
  grep -q "images of $1 x $1 x 3" stderr.log || fail "not $1 pixels: $(cat stderr.log)"
}
resized 16 --resume saved/step-000000006 --steps 7 --resume-changed steps,warmup,epochs
must_work "$TESSERA_BIN/checkpoint" import one.safetensors imported --optimizer sgd
resized 16 --resume imported/step-000000000 --steps 1
resized 20 --resume imported/step-000000000 --steps 1 --image-size 20
# A resumed run does not need the file of --init.
cp one.safetensors gone.safetensors
begun=("${run[@]}" --init gone.safetensors --checkpoint begun --checkpoint-every 3)
alone "${begun[@]}"
rm gone.safetensors
for n in 1 2; do
  rm -r begun/step-000000006
  ranks "$n" "${begun[@]}"
  grep -q 'going on from begun/step-000000003' stderr.log || fail "$(cat stderr.log)"
done
mkdir renamed
cp -r pictures/bright renamed/clear
cp -r pictures/dark renamed/dark
run[1]=renamed
expect "class 1 of one.safetensors is 'bright', but 'clear' in the data" "$train_gpt" "${run[@]}" \
  --init one.safetensors --eval-only
expect "class 1 of saved/step-000000006 is 'bright', but" "$train_gpt" "${run[@]}" \
  --checkpoint saved --eval-only
run[1]=pictures

# A finished run prints the flags with which it can go on, and these flags work. The path of a
# single checkpoint is not taken for a folder of checkpoints.
alone "${run[@]}" --checkpoint saved
grep -q 'for more steps give --steps (or --epochs) and --resume-changed steps,warmup,epochs' \
  std*.log || fail "$(cat stdout.log stderr.log)"
alone "${run[@]}" --steps 8 --checkpoint saved --resume-changed steps,warmup,epochs
alone "${run[@]}" --checkpoint saved --resume-changed steps,warmup,epochs
grep -q 'for more steps give --steps above 8 (or --epochs)$' stderr.log || fail "$(cat stderr.log)"
expect 'is a single checkpoint; give --checkpoint saved, or --resume' "$train_gpt" "${run[@]}" \
  --checkpoint saved/step-000000006 --eval-only

expect 'nothing.*: ' "$train_gpt" --data nothing
python3 - << 'PYTHON'
import os, struct
os.makedirs("oblong")
with open("oblong/t10k-images-idx3-ubyte", "wb") as file:
    file.write(struct.pack(">IIII", 0x803, 20, 2, 3) + bytes(i % 250 for i in range(120)))
with open("oblong/t10k-labels-idx1-ubyte", "wb") as file:
    file.write(struct.pack(">II", 0x801, 20) + bytes(i % 10 for i in range(20)))
PYTHON
expect '2 x 3 pixels' "$train_gpt" --data oblong
expect 'larger --micro-batch' "$train_gpt" --data pictures --image-size 4 --batch 1 --micro-batch 1
expect 'smaller --batch' "$train_gpt" --data pictures --image-size 16 --plan
ln -s loop pictures/loop  # a link to itself, which is not a class
alone "${run[@]}" --steps 1 --eval-every 0
expect 'resnet21' "$train_gpt" --model resnet21
expect 'expected one' "$train_gpt" --epochs 1 --steps 2
expect 'sync-bn.*--micro-batch 6' mpirun -n 2 "$train_gpt" "${run[@]}" --sync-bn
expect 'label-smoothing' "$train_gpt" --label-smoothing 1
expect 'epochs' "$train_gpt" --epochs 0
expect 'warmup' "$train_gpt" --schedule onecycle --warmup 3
expect 'has no tensor' "$train_gpt" "${run[@]}" --model resnet32 --init one.safetensors
expect 'shape is' "$train_gpt" --image-size 0 --steps 1 --init one.safetensors
head -c 300 pictures/dark/05.png > cut.png
expect 'cut.png' "$predict" model.safetensors cut.png
# After an image that cannot be read, predict reports the error and goes on with the next image.
status=0
"$predict" model.safetensors cut.png pictures/dark/07.png > labels.txt 2> stderr.log || status=$?
[[ $status == 2 && $(grep -c '^error: cut.png' stderr.log) == 1 ]] ||
  fail "exit code $status after a bad image: $(cat stderr.log)"
[[ $(head -n 1 labels.txt) == pictures/dark/07.png ]] || fail "no other image: $(cat labels.txt)"
# If libpng cannot begin, which is not the image's fault, the error says so and ends the program.
"${CXX:-c++}" -x c++ -shared -fPIC -o no_png.so - << 'CODE' || fail "no library without PNG"
extern "C" void* png_create_read_struct() { return nullptr; }
CODE
status=0
LD_PRELOAD="$work/no_png.so" "$predict" model.safetensors pictures/dark/07.png > labels.txt \
  2> stderr.log || status=$?
[[ $status == 1 ]] && grep -q '^error: .*07.png: PNG: libpng gives no reason;' stderr.log ||
  fail "exit code $status without libpng: $(< stderr.log)"
# A name's control characters are escaped, in what is printed and in errors, which stay one line.
cp pictures/dark/07.png $'a\e[1m\nb.png'
"$predict" model.safetensors $'a\e[1m\nb.png' > labels.txt
[[ $(head -n 1 labels.txt) == 'a\u001b[1m\u000ab.png' ]] || fail "$(cat labels.txt)"
expect 'a\\u001b\\u000ab: no such' "$train_gpt" --data $'a\e\nb'
expect 'a\\u001b\\u000ab: no such' mpirun -n 2 "$train_gpt" --data $'a\e\nb'
expect 'required' "$predict" model.safetensors
cp text.txt text.safetensors
expect 'text.safetensors' "$predict" text.safetensors cut.png
cp cut.png pictures/dark/05.png
status=0
"$train_gpt" "${run[@]}" --eval-every 0 > stdout.log 2> stderr.log || status=$?
[[ $status == 2 ]] || fail "exit code $status: $(cat stderr.log)"
grep -q 'dark/05.png' stderr.log || fail "$(cat stderr.log)"
# With --verify-data a single rank reads all images before its first step too.
expect 'error: image [0-9]* of [0-9]*: .*dark/05.png[^(]*$' "$train_gpt" "${run[@]}" --verify-data
