# Sourced by the shell tests of the applications. Makes a temporary folder and a text to train on,
# and defines short names. The number of threads is fixed, because the bits of a run depend on the
# number.
set -euo pipefail
export OMP_NUM_THREADS=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
train_gpt=$TESSERA_BIN/train_gpt
generate=$TESSERA_BIN/generate

# Tests run on the CPU, even on machines with real or emulated GPUs, until they call show_gpus.
[[ -v CUDA_VISIBLE_DEVICES ]] && visible_gpus=$CUDA_VISIBLE_DEVICES
[[ -v TESSERA_EMULATED_DEVICES ]] && emulated_gpus=$TESSERA_EMULATED_DEVICES
export CUDA_VISIBLE_DEVICES= TESSERA_EMULATED_DEVICES=0
show_gpus() {
  unset CUDA_VISIBLE_DEVICES TESSERA_EMULATED_DEVICES
  if [[ -v visible_gpus ]]; then export CUDA_VISIBLE_DEVICES=$visible_gpus; fi
  if [[ -v emulated_gpus ]]; then export TESSERA_EMULATED_DEVICES=$emulated_gpus; fi
}

cat "$TESSERA_SOURCE_DIR"/core/*.h > text.txt
tiny=(--layers 2 --heads 2 --width 16 --context 16 --global-batch 12 --micro-batch 2)

fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

# alone ARGUMENT... runs train_gpt without mpirun; ranks N ARGUMENT... runs it on N ranks. The run
# must succeed.
alone() { must_work "$train_gpt" "$@"; }
ranks() { must_work mpirun -n "$1" "$train_gpt" "${@:2}"; }
must_work() {
  "$@" > stdout.log 2> stderr.log < /dev/null || fail "exit code $?: $*"$'\n'"$(cat stderr.log)"
}

# expect PATTERN PROGRAM ARGUMENT...: the program must refuse bad input with exit code 2 and one
# line that has PATTERN. With several ranks the line is printed once.
expect() {
  local pattern=$1 status=0
  shift
  "$@" > stdout.log 2> stderr.log < /dev/null || status=$?
  [[ $status == 2 ]] || fail "exit code $status instead of 2: $*"$'\n'"$(cat stderr.log)"
  [[ $(grep -c -- "$pattern" stderr.log) == 1 ]] ||
    fail "not '$pattern' once from: $*"$'\n'"$(cat stderr.log)"
  [[ $1 == mpirun || $(wc -l < stderr.log) == 1 ]] || fail "more than one line from: $*"
  [[ ! -s stdout.log ]] || fail "output from: $*"
}

# losses LOG: prints the log's steps and evaluations, without times, to compare runs.
losses() { grep -E '"type":"(step|eval)"' "$1" | sed -E 's/,"(tokens|images)_per_s".*//'; }

# as_first NAME TEXT: the last run, whose log is run.jsonl and whose weights are run.safetensors,
# must have the losses and weights of the first run of this name. TEXT describes the run in errors.
as_first() {
  if [[ ! -e $1.txt ]]; then
    losses run.jsonl > "$1.txt"
    mkdir -p kept  # in a folder apart: train_gpt replaces no config.json that other weights need
    cp run.safetensors "kept/$1.safetensors"
  fi
  losses run.jsonl | diff "$1.txt" - || fail "other losses: $1, $2"
  cmp run.safetensors "kept/$1.safetensors" || fail "other weights: $1, $2"
}

# edit_safetensors FROM TO CODE: copies a safetensors file after the Python statement CODE has
# changed `tensors`, a dict of name -> [dtype, shape, bytes], or `metadata`. describe(KEY, NAME,
# VALUE) sets one member of the JSON object that the metadata have under KEY.
edit_safetensors() {
  python3 - "$@" << 'PYTHON'
import json, struct, sys
data = open(sys.argv[1], "rb").read()
size = int.from_bytes(data[:8], "little")
header, data = json.loads(data[8:8 + size]), data[8 + size:]
metadata = header.pop("__metadata__", None)
tensors = {name: [e["dtype"], e["shape"], data[slice(*e["data_offsets"])]]
           for name, e in header.items()}
def describe(key, name, value):
    metadata[key] = json.dumps({**json.loads(metadata[key]), name: value})
exec(sys.argv[3])
header, data = {"__metadata__": metadata} if metadata else {}, b""
for name, (dtype, shape, value) in tensors.items():
    header[name] = {"dtype": dtype, "shape": shape,
                    "data_offsets": [len(data), len(data) + len(value)]}
    data += value
text = json.dumps(header).encode()
open(sys.argv[2], "wb").write(struct.pack("<Q", len(text)) + text + data)
PYTHON
}
