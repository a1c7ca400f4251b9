#!/usr/bin/env bash
# Bad input to train_gpt and generate gives exit code 2 and one line that names the error. No file
# is written. Also tests losses that are not finite.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"

# Writes bad raw files, and safetensors files with bad headers. tests/nn/test_safetensors.cpp tests
# the errors of the format in detail.
python3 - << 'PYTHON'
import json, struct

def write(name, data):
    with open(name, "wb") as file:
        file.write(data)

def hostile(name, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    write(name, struct.pack("<Q", len(text) if length is None else length) + text + data)

def tensor(begin, end, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}

write("empty.txt", b"")
write("short.txt", b"0123456789")
write("odd.bin", b"abc")
write("large.bin", struct.pack("<400H", *[1] * 100, 300, *[1] * 299))
header = struct.pack("<256i", 20240520, 1, 7, *[0] * 253)
write("count.bin", header + struct.pack("<100H", *[1] * 100))
write("foreign.safetensors", b"PK\x03\x04 this is a zip file of another program")
hostile("long_header.safetensors", b"{}", length=1000)
hostile("huge_header.safetensors", b"{}", length=100_000_001)
hostile("overlap.safetensors", {"a": tensor(0, 8), "b": tensor(4, 12)}, bytes(12))
hostile("out_of_range.safetensors", {"a": tensor(0, 8)}, bytes(4))
hostile("dtype.safetensors", {"a": tensor(0, 8, "F99")}, bytes(8))
hostile("json.safetensors", b'{"a":')
hostile("images.safetensors", {"fc.bias": tensor(0, 8)}, bytes(8))
PYTHON

before() { find . -type f ! -name '*.log' -exec sha256sum {} + | sort; }

# expect PATTERN PROGRAM ARGUMENT...: the program must end with exit code 2, must print one line of
# errors with PATTERN (mpirun may print more lines), and must change no file.
expect() {
  local pattern=$1 status=0 state
  shift
  state=$(before)
  "$@" > stdout.log 2> stderr.log < /dev/null || status=$?
  [[ $status == 2 ]] || fail "exit code $status instead of 2: $*"$'\n'"$(cat stderr.log)"
  grep -q -- "$pattern" stderr.log || fail "no '$pattern' from: $*"$'\n'"$(cat stderr.log)"
  [[ $1 == mpirun || $(wc -l < stderr.log) == 1 ]] || fail "not one line from: $*"
  [[ ! -s stdout.log ]] || fail "output from: $*"
  [[ $(before) == "$state" ]] || fail "files were changed by: $*"
}
train() {
  local pattern=$1
  shift
  expect "$pattern" "$train_gpt" --steps 1 --eval-every 0 "$@" --log run.jsonl --trace trace.json
}
small=("${tiny[@]}" --data text.txt)

train 'error: no_such.txt: cannot be opened: No such file' --data no_such.txt
train 'empty.txt: is empty' --data empty.txt
train 'is not a regular file' --data .
train 'short.txt: the data has 10 tokens, expected at least one sequence' --data short.txt
train 'odd.bin: has 3 bytes' --data odd.bin
train 'says 7 tokens, but 200 bytes follow' --data count.bin
train 'validation part has 10 tokens' --data text.txt --val-data short.txt --eval-every 1
train '--data is required'
train 'unknown flag --foo; --help lists' "${small[@]}" --foo
train '--layers is -1' "${small[@]}" --layers -1
train '--context is 0' "${small[@]}" --context 0
train '--heads is 0' "${small[@]}" --heads 0
train '--global-batch is 0' "${small[@]}" --global-batch 0
train '--micro-batch is 0' "${small[@]}" --micro-batch 0
train '--global-batch 12 is not a multiple of --micro-batch 5' "${small[@]}" --micro-batch 5
train '--width 18 is not divisible by --heads 4' "${small[@]}" --width 18 --heads 4
train '--stage is 4, expected 0, 1, 2 or 3' "${small[@]}" --stage 4
train "--precision is 'fp8', expected one of fp32, bf16, fp16" "${small[@]}" --precision fp8
train 'grad-shard bf16 is for 16-bit gradients; --precision is fp32' \
  "${small[@]}" --grad-shard bf16
train "--offload is 'disk', expected one of none, optimizer" "${small[@]}" --offload disk

train 'none.safetensors: cannot be opened' "${small[@]}" --init none.safetensors
train 'not a safetensors file' "${small[@]}" --init foreign.safetensors
train 'truncated: a header of 1000 bytes' "${small[@]}" --init long_header.safetensors
train 'expected at most 100000000' "${small[@]}" --init huge_header.safetensors
train '"b": its bytes \[4, 12\] overlap' "${small[@]}" --init overlap.safetensors
train 'data_offsets are \[0, 8\], but the file has 4' "${small[@]}" --init out_of_range.safetensors
train 'dtype "F99" is unknown' "${small[@]}" --init dtype.safetensors
train 'not valid JSON' "${small[@]}" --init json.safetensors

mkdir saved
alone "${small[@]}" --steps 1 --eval-every 0 --save saved/model.safetensors
head -c -4 saved/model.safetensors > truncated.safetensors
train 'has [0-9]* bytes of data' "${small[@]}" --init truncated.safetensors
cp saved/model.safetensors other.safetensors
train 'has width 16, but the flags ask for --width 32; leave' \
  "${small[@]}" --width 32 --init other.safetensors
train 'has heads 2, width 16, but the flags ask for --heads 4, --width 32; leave' \
  "${small[@]}" --heads 4 --width 32 --init saved/model.safetensors

train 'no/m.safetensors: cannot be written: the folder no does not exist' \
  "${small[@]}" --save no/m.safetensors
train 'not a regular file' "${small[@]}" --save saved
expect 'no/run.jsonl: cannot be written: the folder no does not exist' "$train_gpt" \
  "${small[@]}" --log no/run.jsonl
# Lines of a log that are nested so deep that copying them would overflow the stack.
python3 - << 'PYTHON'
deep = "[" * 200000 + "]" * 200000
open("deep.jsonl", "w").write('{"type":%s}\n' % deep)
open("model.jsonl", "w").write('{"type":"header","program":"train_gpt","model":%s}\n' % deep)
PYTHON
for log in deep model; do
  expect "keeps its log in $log.jsonl, which already exists and was not written for" \
    "$train_gpt" "${small[@]}" --steps 1 --eval-every 0 --report "$log.html"
done
expect 'no/trace.json: cannot be written' "$train_gpt" "${small[@]}" --trace no/trace.json
if [[ $(id -u) != 0 ]]; then
  mkdir -m 555 locked
  train 'cannot be written: Permission denied' "${small[@]}" --save locked/m.safetensors
fi

expect 'config.json: there is no such file' "$generate" other.safetensors
expect 'none.safetensors: cannot be opened' "$generate" none.safetensors
expect 'it has no tensor "wte.weight", so it does not have the weights of a GPT' "$generate" \
  images.safetensors
expect 'unknown flag --foo; --help lists' "$generate" saved/model.safetensors --foo
expect 'token 256 is beyond the model.s vocabulary of 256' \
  "$generate" saved/model.safetensors --prompt-tokens 256
# The sizes in config.json are limited, and compared with the weights, before a model is built.
cp saved/config.json config.good
config() { sed "s/\"$1\": [^,]*/\"$1\": $2/" config.good > saved/config.json; }
config n_layer 1000000
expect 'config.json: n_layer is 1000000, expected at most 16384' "$generate" saved/model.safetensors
config n_embd 4611686018427387904
expect 'config.json: n_embd is 4611686018427387904, expected at most' \
  "$generate" saved/model.safetensors
config layer_norm_epsilon -1
expect 'config.json: layer_norm_epsilon is -1, expected above 0' "$generate" saved/model.safetensors
config n_layer 3
expect 'config.json: says n_layer 3, but the tensors of .* have 2' \
  "$generate" saved/model.safetensors
# The weights of another kind of model may have the same names and shapes.
config model_type '"other"'
expect 'config.json: model_type is "other", but only "gpt2" is' "$generate" saved/model.safetensors
train 'config.json: model_type is "other", but only "gpt2" is supported' \
  "${small[@]}" --init saved/model.safetensors
head -c 200000 /dev/zero | tr '\0' '[' > saved/config.json
expect 'config.json: is nested deeper than 32' "$generate" saved/model.safetensors
train 'config.json: is nested deeper than 32' "${small[@]}" --init saved/model.safetensors
cp config.good saved/config.json

cp truncated.safetensors saved/model.safetensors
expect 'has [0-9]* bytes of data' "$generate" saved/model.safetensors

# With several ranks the error is printed once.
expect 'no_such.txt: cannot be opened' mpirun -n 3 "$train_gpt" --data no_such.txt
[[ $(grep -c 'no_such.txt' stderr.log) == 1 ]] || fail "said twice: $(cat stderr.log)"
expect 'unknown flag --foo; --help lists' mpirun -n 2 "$train_gpt" --foo

# Files are not scanned before training, so a token beyond the vocabulary ends the run only when a
# rank reads the token. Three steps read every training window of large.bin, and so its token 300.
# With --vocab 100, nearly every window of text.txt has a token beyond the vocabulary.
unread() {
  local status=0
  "$@" --steps 3 --eval-every 0 > stdout.log 2> stderr.log < /dev/null || status=$?
  [[ $status == 2 ]] || fail "exit code $status for a token beyond the vocabulary: $*"
  grep -q "$wrong_token" stderr.log || fail "$*"$'\n'"$(cat stderr.log)"
}
wrong_token='large.bin: token 300 at position 100 is beyond the model.s vocabulary of 256'
for ranks in 1 3; do
  unread mpirun -n "$ranks" "$train_gpt" "${small[@]}" --data large.bin
done
wrong_token='text.txt: token [0-9]* at position [0-9]* is beyond the model.s vocabulary of 100'
unread "$train_gpt" "${small[@]}" --vocab 100
alone "${small[@]}" --data large.bin --steps 3 --eval-every 0 --vocab 301

# If a loss is not finite, the exit code is 1, and the error names the step and the first operation
# whose result is not finite.
python3 - << 'PYTHON'
import json, struct
data = bytearray(open("other.safetensors", "rb").read())
length = struct.unpack("<Q", data[:8])[0]
entry = json.loads(data[8:8 + length])["transformer.h.1.mlp.c_fc.weight"]
position = 8 + length + entry["data_offsets"][0] + 20
data[position:position + 4] = struct.pack("<f", float("nan"))
open("nan.safetensors", "wb").write(data)
PYTHON
not_finite() {
  local status=0
  "$@" "${small[@]}" --steps 3 --init nan.safetensors --save never.safetensors \
    > stdout.log 2> stderr.log < /dev/null || status=$?
  [[ $status == 1 ]] || fail "exit code $status for a loss that is not finite: $*"
  local text='step 1: the loss is not finite (nan); first at linear with h.1.mlp.c_fc.weight'
  [[ $(grep -c "$text, which is not finite itself" stderr.log) == 1 ]] ||
    fail "$*"$'\n'"$(cat stderr.log)"
}
not_finite "$train_gpt"
not_finite "$train_gpt" --precision bf16 --recompute
for stage in 0 1 2 3; do
  not_finite mpirun -n 3 "$train_gpt" --stage "$stage"
done
[[ ! -e never.safetensors && -z $(find . -name '*.tmp') ]] || fail "files were left behind"
