#!/usr/bin/env bash
# If the disk fills up while a run of one or several ranks saves its weights, undamaged weights are
# saved in the working directory instead. The files of --report, --csv and --trace are still
# written. The exit code is 1, because the weights are not at the path of --save. Full disks for the
# last checkpoint, the trace and the log are tested too.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
unshare --mount --map-root-user mount -t tmpfs none "$work" 2> /dev/null ||
  { echo "skipped: no small disk can be mounted here"; exit 77; }

run=("${tiny[@]}" --data text.txt --steps 2 --eval-every 0)
resnet=("$TESSERA_BIN/train_resnet" --steps 1 --batch 2 --micro-batch 2 --eval-every 0)
mkdir out disk
alone "${run[@]}" --save out/model.safetensors
must_work "${resnet[@]}" --save image.safetensors
kilobytes=$((($(stat -c %s out/model.safetensors) + 4095) / 4096 * 4))  # in whole pages

# rescued KILOBYTES PROGRAM ARGUMENT...: runs with a file system of KILOBYTES at disk/; sets `found`
# to the file that has the weights.
rescued() {
  local status=0 kilobytes=$1
  shift
  unshare --mount --map-root-user bash -ec '
    mount -t tmpfs -o size="$0"k none disk
    status=0
    "$@" || status=$?
    [[ -z $(ls disk) ]] || { ls disk >&2; exit 99; }
    exit $status' "$kilobytes" "$@" > stdout.log 2> stderr.log < /dev/null || status=$?
  [[ $status == 1 ]] || fail "exit code $status instead of 1: $*"$'\n'"$(< stderr.log)"
  [[ $(grep -c "disk/[a-z.]*: writing failed: No space left on device; the weights \
are in .* instead" stderr.log) == 1 ]] ||
    fail "not said once where the weights are: $(< stderr.log)"
  found=$(sed -nE 's/.*the weights are in (.*) instead$/\1/p' stderr.log)
  [[ $found == "$PWD"/*-rescued-*/*.safetensors ]] || fail "they are in '$found'"
}
for ranks in 1 3; do
  rescued $((kilobytes / 2)) mpirun -n "$ranks" "$train_gpt" "${run[@]}" --stage 3 \
    --report page.html --csv page.csv --trace trace.json --save disk/model.safetensors
  for file in page.html page.csv page.jsonl trace.json; do
    [[ -s $file ]] || fail "no $file on $ranks ranks"
    rm $file
  done
  cmp "$found" out/model.safetensors || fail "other weights on $ranks ranks"
  cmp "${found%/*}/config.json" out/config.json || fail "no config.json on $ranks ranks"
done
# The weights fit on the disk, but config.json, which describes the model, does not.
rescued $kilobytes "$train_gpt" "${run[@]}" --save disk/model.safetensors
must_work "$generate" "$found" --tokens 3
rescued $((kilobytes / 2)) "${resnet[@]}" --save disk/image.safetensors
cmp "$found" image.safetensors || fail "other weights of a model of images"

# If a resumed run has only --save left to do, weights that do not fit are rescued too.
alone "${run[@]}" --checkpoint saved
rescued $((kilobytes / 2)) mpirun -n 2 "$train_gpt" "${run[@]}" --checkpoint saved \
  --save disk/model.safetensors
cmp "$found" out/model.safetensors || fail "other weights without a step"

# If the last checkpoint does not fit on its disk, the files of --save, --report, --csv and --trace
# are still written. The exit code is 1.
status=0
unshare --mount --map-root-user bash -ec 'mount -t tmpfs -o size="$0"k none disk; "$@"' \
  "$kilobytes" mpirun -n 2 "$train_gpt" "${run[@]}" --checkpoint disk/saved \
  --save kept.safetensors --log kept.jsonl --report kept.html --csv kept.csv --trace kept.json \
  > stdout.log 2> stderr.log < /dev/null || status=$?
[[ $status == 1 ]] || fail "exit code $status instead of 1: $(< stderr.log)"
grep -q 'disk/saved: the checkpoint of step 2 was not written: .*No space left' stderr.log ||
  fail "no reason: $(< stderr.log)"
cmp kept.safetensors out/model.safetensors || fail "other weights after a lost checkpoint"
for file in kept.html kept.csv kept.json; do [[ -s $file ]] || fail "no $file"; done
grep -q '"type":"summary"' kept.jsonl || fail "no summary: $(< kept.jsonl)"

# on_full_disk KILOBYTES ARGUMENT...: runs train_gpt on two ranks with a file system of 8 KiB at
# disk/, of which a file takes KILOBYTES. The run must end with exit code 1.
on_full_disk() {
  local status=0
  unshare --mount --map-root-user bash -ec '
    mount -t tmpfs -o size=8k none disk
    head -c "$0"K /dev/zero > disk/filler
    "$@"' "$1" mpirun -n 2 "$train_gpt" "${run[@]}" "${@:2}" > stdout.log 2> stderr.log \
    < /dev/null || status=$?
  [[ $status == 1 ]] || fail "exit code $status instead of 1: $(< stderr.log)"
}
# If the trace does not fit on its disk, the other outputs are written all the same.
on_full_disk 4 --trace disk/trace.json --save traced.safetensors --report traced.html \
  --csv traced.csv
grep -q '^rank 0, after step 2: disk/trace.json: writing failed: No space left' stderr.log ||
  fail "no reason: $(< stderr.log)"
cmp traced.safetensors out/model.safetensors || fail "other weights after a lost trace"
for file in traced.html traced.csv; do [[ -s $file ]] || fail "no $file"; done
# If no line of the log could be written, --report and --csv cannot be made from it. The exit code
# is 1, not 2, because the input is valid.
on_full_disk 8 --log disk/run.jsonl --save unlogged.safetensors --report lost.html --csv lost.csv
unlogged='is not written, because the log could not be written'
grep -q "^rank 0, after step 2: lost.html $unlogged" stderr.log ||
  fail "no reason: $(< stderr.log)"
grep -q "lost.csv $unlogged" stderr.log ||
  fail "no reason for the table: $(< stderr.log)"
cmp unlogged.safetensors out/model.safetensors || fail "other weights after a lost log"
