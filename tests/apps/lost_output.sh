#!/usr/bin/env bash
# Output that cannot be written to standard output (help, a table, JSON or text) is an error: exit
# code 1 and a line that names standard output. A training saves its weights before it ends with
# this error. If a log cannot be written, only its lines are lost. If the reader of a pipe ends,
# training goes on too, but generate and --help end by SIGPIPE.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"

# lost PROGRAM ARGUMENT...: the program must fail if standard output is a full disk, and if standard
# output is closed.
lost() {
  local status=0 reason
  "$@" > /dev/full 2> stderr.log < /dev/null || status=$?
  reason='standard output: writing failed: No space left on device'
  [[ $status == 1 && $(grep -c "$reason" stderr.log) == 1 ]] ||
    fail "exit code $status for a full disk: $*"$'\n'"$(< stderr.log)"
  status=0
  "$@" >&- 2> stderr.log < /dev/null || status=$?
  reason='standard output: writing failed: Bad file descriptor'
  [[ $status == 1 && $(grep -c "$reason" stderr.log) == 1 ]] ||
    fail "exit code $status for a closed stream: $*"$'\n'"$(< stderr.log)"
}

run=("${tiny[@]}" --data text.txt --steps 2 --eval-every 0)
mkdir out
alone "${run[@]}" --log expected.jsonl --save out/model.safetensors
resnet=("$TESSERA_BIN/train_resnet" --steps 1 --batch 2 --micro-batch 2 --eval-every 0)
must_work "${resnet[@]}" --save image.safetensors
python3 - << 'PYTHON'
import struct, zlib
def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
open("image.png", "wb").write(
    b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", 32, 32, 8, 2, 0, 0, 0)) +
    chunk(b"IDAT", zlib.compress((b"\0" + bytes(96)) * 32)) + chunk(b"IEND", b""))
PYTHON

for program in checkpoint comm_bench generate predict recommend relaunch report train_gpt \
  train_recommender train_resnet tune zero_plan; do
  lost "$TESSERA_BIN/$program" --help
done
lost "$train_gpt" "${run[@]}" --plan
lost "$train_gpt" "${run[@]}" --sample 20 --log run.jsonl --save late.safetensors
cmp late.safetensors out/model.safetensors || fail "other weights where standard output is lost"
# `lost` has run the program with standard output closed. If the log had been opened on the closed
# descriptor, text for standard output would be in the log.
diff <(losses expected.jsonl) <(losses run.jsonl) || fail "other losses"
[[ $(tail -n 1 run.jsonl) == *'"type":"summary"'* ]] || fail "the log has something else"
lost "${resnet[@]}"
lost "$generate" out/model.safetensors --tokens 5
lost "$TESSERA_BIN/predict" image.safetensors image.png
for json in - plan.json; do
  lost "$TESSERA_BIN/zero_plan" --preset nano --ranks 4 --json "$json"
done
for json in - comm.json; do
  lost "$TESSERA_BIN/comm_bench" --device cpu --min-bytes 1024 --max-bytes 1024 --iterations 1 \
    --json "$json"
done
# An error message that cannot be written does not change the exit code.
status=0
"$generate" none.safetensors 2> /dev/full || status=$?
[[ $status == 2 ]] || fail "exit code $status where the error is lost"

# This text would take days, but generate ends at the first character that cannot be written.
lost "$generate" out/model.safetensors --tokens 1000000000

# A log on a full disk gives one warning, and training is unaffected.
alone "${run[@]}" --log /dev/full --save out/again.safetensors
cmp out/again.safetensors out/model.safetensors || fail "other weights where the log is lost"
[[ $(grep -c '/dev/full: writing failed: No space left on device; training goes on' \
  stderr.log) == 1 ]] || fail "not warned once: $(< stderr.log)"

# unread STATUS STDOUT PROGRAM ARGUMENT...: runs the program with a pipe without a reader as
# standard error, and also as standard output if STDOUT is "pipe". Its exit code must be STATUS.
unread() {
  local status=0
  python3 - "${@:2}" << 'PYTHON' || status=$?
import os, subprocess, sys
reader, writer = os.pipe()
os.close(reader)
output = writer if sys.argv[1] == "pipe" else subprocess.DEVNULL
# Popen restores the default action of SIGPIPE, which Python itself ignores.
sys.exit(subprocess.call(sys.argv[2:], stdin=subprocess.DEVNULL, stdout=output, stderr=writer))
PYTHON
  [[ $status == "$1" ]] || fail "exit code $status where nobody reads: ${*:3}"
}
for case in '0 null' '1 pipe'; do
  read -r status output <<< "$case"
  rm -rf unread unread.jsonl out/unread.safetensors
  unread "$status" "$output" "$train_gpt" "${run[@]}" --log unread.jsonl --checkpoint unread \
    --save out/unread.safetensors --sample 20
  cmp out/unread.safetensors out/model.safetensors || fail "other weights where nobody reads"
  diff <(losses expected.jsonl) <(losses unread.jsonl) || fail "other losses where nobody reads"
  [[ -e unread/step-000000002/manifest.json ]] || fail "no checkpoint where nobody reads"
done
unread 1 pipe "${resnet[@]}" --save unread.safetensors
cmp unread.safetensors image.safetensors || fail "other weights of images where nobody reads"
unread 1 pipe "$TESSERA_BIN/train_recommender" --steps 1 --batch 60 --micro-batch 12 \
  --eval-every 0 --save ratings.safetensors
[[ -s ratings.safetensors ]] || fail "no weights of ratings where nobody reads"
by_signal=$((256 - $(kill -l PIPE)))  # Python has the negative number as exit code
unread "$by_signal" pipe "$generate" out/model.safetensors --tokens 5
unread "$by_signal" pipe "$train_gpt" --help

# If the terminal of a run is gone, the progress line cannot be written. The weights are saved.
python3 - "$train_gpt" "${run[@]}" --steps 500 --save out/gone.safetensors << 'PYTHON'
import os, pty, signal, sys
child, terminal = pty.fork()
if child == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    os.execv(sys.argv[1], sys.argv[1:])
text = b""
while b"step 3/500 " not in text:
    text += os.read(terminal, 65536)
os.close(terminal)
os.waitpid(child, 0)
PYTHON
[[ -s out/gone.safetensors ]] || fail "no weights where the terminal is gone"
