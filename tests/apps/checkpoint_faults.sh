#!/usr/bin/env bash
# ctest: TIMEOUT 900
# A run is killed at a write, an fsync, a rename or a removal of its checkpoints, or one of these
# calls fails. Either the old or the new checkpoint is then undamaged, and the resumed run ends like
# a run without faults. Tries each fsync and rename, and a sample of the writes and removals. With
# the argument `exhaustive`, tries every call. Then a run replaces a damaged checkpoint, and the
# faults are tried at each rename and removal of this run. A kill of the program cannot show what a
# crash of the machine would lose. So the order of fsyncs and renames is also checked, in a run
# without faults.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
"${CXX:-c++}" -std=c++20 -shared -fPIC -O1 -o faults.so \
  "$TESSERA_SOURCE_DIR/tests/apps/file_faults.cpp" -ldl || fail "no library of faults"
run=("$train_gpt" --data text.txt --layers 1 --heads 1 --width 4 --context 4 --global-batch 2
  --micro-batch 2 --steps 3 --eval-every 0 --threads 1 --checkpoint "$work/run"
  --checkpoint-every 1 --checkpoint-keep 1 --checkpoint-async off)

digest() { sed -nE 's/^ *"digest": "([0-9a-f]+)",$/\1/p' run/step-000000003/manifest.json; }
must_work env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/run" FAULT_TRACE="$work/trace" \
  "${run[@]}"
expected=$(digest)
[[ $expected =~ ^[0-9a-f]{32}$ ]] || fail "no digest"

# Files and folders are flushed before the rename that gives them their final name. The folder of
# the checkpoints is flushed before the previous checkpoint is renamed, which begins its removal.
for step in 1 2 3; do
  new=run/step-00000000$step
  for name in shard-00001-of-00001.safetensors manifest.json; do
    printf '%s\n' "fsync $new.partial/$name.tmp" "rename $new.partial/$name"
  done
  printf '%s\n' "fsync $new.partial" "rename $new" "fsync run"
  ((step == 1)) || printf 'rename run/step-00000000%d.partial\n' $((step - 1))
done > order
sed -E "s|$work/||; s/(safetensors|json)\..*\.tmp$/\1.tmp/" trace | diff order - ||
  fail "another order of fsyncs and renames"

# The name of each folder that is made on the way to the checkpoints is flushed at the start. A run
# that cannot flush one is refused, and leaves none of them behind.
deep=("${run[@]}" --checkpoint "$work/new/deep/run")
rm trace
must_work env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work" FAULT_TRACE="$work/trace" \
  "${deep[@]}"
printf 'fsync %s\n' "$work" "$work/new" "$work/new/deep" | diff - <(head -n 3 trace) ||
  fail "new folders are not flushed"
rm -r new
for at in 1 2 3; do
  status=0
  env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work" FAULT=EIO FAULT_CALLS=fsync FAULT_AT=$at \
    "${deep[@]}" > stdout.log 2> stderr.log < /dev/null || status=$?
  [[ $status == 1 ]] || fail "exit code $status without the flush $at: $(cat stderr.log)"
  grep -q ': cannot be flushed to the disk: Input/output error' stderr.log ||
    fail "the flush $at fails without a reason: $(cat stderr.log)"
  [[ ! -e new ]] || fail "left behind without the flush $at: $(find new)"
done

# Another run removes its lock file while this run tries to make one. This run is then refused, and
# must remove the lock file that it has made.
mkdir race
touch race/lock
status=0
env LD_PRELOAD="$work/faults.so" FAULT_LOCK="$work/race/lock" "${run[@]}" \
  --checkpoint "$work/race" --resume-changed stpes > stdout.log 2> stderr.log < /dev/null ||
  status=$?
[[ $status == 2 ]] && grep -q 'stpes: there is no such setting' stderr.log ||
  fail "exit code $status: $(cat stderr.log)"
[[ ! -e race/lock ]] || fail "a refused run has left its lock file"

# fault KIND CALLS AT: runs with the fault KIND at the call number AT among the calls named CALLS
# (file_faults.cpp), from the folder `start` if there is one. Sets `status` to the exit code.
fault() {
  rm -rf run
  if [[ -d start ]]; then cp -r start run; fi
  status=0
  {
    env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/run/step-" FAULT="$1" FAULT_CALLS="$2" \
      FAULT_AT="$3" FAULT_COUNT="$work/count" "${run[@]}" > stdout.log 2> stderr.log < /dev/null ||
      status=$?
  } 2> shell.log  # the shell's message that a program was killed
}
# goes_on TEXT: runs the command again without a fault. The run must resume and have the expected
# digest. TEXT describes the fault in errors.
goes_on() {
  must_work "${run[@]}"
  [[ $(digest) == "$expected" ]] || fail "another end after $1"
  # An old checkpoint that was about to be removed may be left, but no incomplete one.
  [[ $(ls run) =~ ^lock.(step-000000002.)?step-000000003$ ]] || fail "left after $1: $(ls run)"
}
# kill_or_fail CALLS AT KIND...: a run is killed at a call, and then each KIND of failure is tried.
kill_or_fail() {
  local calls=$1 at=$2 kind
  shift 2
  fault kill "$calls" "$at"
  [[ $status == 137 ]] || fail "exit code $status of a run that is killed at $calls $at"
  goes_on "a kill at $calls $at"
  for kind in "$@"; do
    fault "$kind" "$calls" "$at"
    [[ $status == 0 || $status == 1 ]] || fail "exit code $status, $kind at $calls $at"
    grep -q 'step 3/3' stderr.log || fail "$kind at $calls $at ends the run: $(cat stderr.log)"
    # A removal that fails need not be reported, because it does no harm to saved checkpoints.
    grep -qE 'was not written: |could not be removed: ' stderr.log || [[ $calls == unlink ]] ||
      fail "$kind at $calls $at is not told"
    goes_on "$kind at $calls $at"
  done
  tried=$((tried + 1))
}

tried=0
for calls in write fsync rename unlink; do
  fault none "$calls" 0
  [[ $status == 0 ]] || fail "counting $calls: $(cat stderr.log)"
  count=$(cat count)
  ((count >= 3)) || fail "$count calls of $calls are seen"
  step=1
  [[ $calls == write && ${1:-} != exhaustive ]] && step=$((count / 6))
  [[ $calls == unlink && ${1:-} != exhaustive ]] && step=2
  for ((at = 1; at <= count; at += step)); do
    kinds=(EIO)
    [[ $calls == write ]] && kinds+=(short)
    kill_or_fail "$calls" "$at" "${kinds[@]}"
  done
done

# The folder of the checkpoints cannot be flushed after a checkpoint got its final name. The message
# must not say that this checkpoint was not written, and the checkpoint before it stays. Each
# checkpoint has four calls of fsync in `run`, as `order` shows.
for step in 1 3; do
  rm -rf run
  status=0
  env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/run" FAULT=EIO FAULT_CALLS=fsync \
    FAULT_AT=$((4 * step)) "${run[@]}" --log unflushed.jsonl > stdout.log 2> stderr.log \
    < /dev/null || status=$?
  [[ $status == $((step == 3)) ]] || fail "exit code $status of a run without the flush $step"
  why="run/step-00000000$step is in its place, but may be lost if the machine fails now: "
  why+=".*/run: cannot be flushed to the disk: Input/output error"
  grep -q "run: the checkpoint of step $step is not safe on the disk: rank 0: .*/$why" stderr.log ||
    fail "the flush $step fails without a reason: $(cat stderr.log)"
  ! grep -q 'was not written' stderr.log || fail "an untrue message: $(cat stderr.log)"
  grep -q "\"step\":$step,\"path\":.*\"digest\":.*\"failed\":\"rank 0: .*/$why" unflushed.jsonl ||
    fail "not in the log: $(cat unflushed.jsonl)"
  expected_names='lock step-000000003'
  ((step == 1)) || expected_names='lock step-000000002 step-000000003'
  [[ $(echo $(ls run)) == "$expected_names" ]] || fail "left without the flush $step: $(ls run)"
  [[ $(digest) == "$expected" ]] || fail "another digest without the flush $step"
  rm unflushed.jsonl
  must_work "$TESSERA_BIN/checkpoint" verify run
done

# The newest checkpoint is damaged, so the run resumes from the one before it and replaces it.
run+=(--checkpoint-keep 2)
rm -rf run
must_work "${run[@]}"
shard=$(ls run/step-000000003/*.safetensors | head -n 1)
printf 'damaged' | dd of="$shard" bs=1 seek=$(($(stat -c %s "$shard") - 8)) conv=notrunc status=none
cp -r run start
for calls in rename unlink; do
  fault none "$calls" 0
  [[ $status == 0 ]] || fail "counting $calls of a replacement: $(cat stderr.log)"
  count=$(cat count)
  # The renames are of the shard, the manifest, the old folder and the new folder.
  least=4
  [[ $calls == unlink ]] && least=2
  ((count >= least)) || fail "$count calls of $calls in a replacement"
  for ((at = 1; at <= count; at++)); do kill_or_fail "$calls" "$at" EIO; done
done
printf '%d places, killed and failing: the run goes on as if nothing had happened\n' "$tried"
