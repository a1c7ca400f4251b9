# Sourced by the tests of `checkpoint`, after common.bash: functions that call the tool, and a
# Python script that writes its input files independently of Tessera.
checkpoint=$TESSERA_BIN/checkpoint
train_resnet=$TESSERA_BIN/train_resnet
train_recommender=$TESSERA_BIN/train_recommender
python=${TESSERA_PEER_PYTHON:-python3}

tool() {
  "$checkpoint" "$@" > tool.log 2> stderr.log || fail "exit code $?: $*: $(cat stderr.log)"
}
# says PATTERN: the tool must have printed a line with PATTERN.
says() { grep -qE -- "$1" tool.log || fail "no '$1' in: $(cat tool.log)"; }
# fails CODE PATTERN ARGUMENT...: the tool must end with exit code CODE and one line with PATTERN on
# standard error.
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

# moments.py CHECKPOINT FILE PREFIX: writes a checkpoint's optimizer state to a file. The kinds of
# state have PyTorch's names, such as exp_avg and step. PREFIX is put before each tensor's name.
# Reads and writes without Tessera.
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
    if kind == "updates":  # PyTorch counts steps in 32-bit floats
        kind, value = "step", struct.pack("<f", struct.unpack("<q", value)[0])
    elif kind not in ("exp_avg", "exp_avg_sq", "momentum_buffer"):
        continue
    header[f"{prefix}{tensor['name']}.{kind}"] = {
        "dtype": "F32", "shape": tensor["shape"], "data_offsets": [len(data), len(data + value)]}
    data += value
text = json.dumps(header).encode()
open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON
