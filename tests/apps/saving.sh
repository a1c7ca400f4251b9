#!/usr/bin/env bash
# ctest: TIMEOUT 300
# Weights that --save-every and --save-best write during a run have equal bits on any number of
# ranks, at any stage, and after a kill and a resume. Planned and measured bytes are equal. Also
# tests a full disk, and checkpoints with a limited staging copy on a slow disk.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
train_resnet=$TESSERA_BIN/train_resnet
train_recommender=$TESSERA_BIN/train_recommender
run=(--data text.txt "${tiny[@]}" --steps 12 --eval-every 3 --eval-batches 2 --threads 1 --lr 0.02)

equal_bytes() {
  grep -q "planned and measured are equal on all ranks ($1)" stdout.log ||
    fail "planned is not measured: $2"$'\n'"$(cat stdout.log)"
}

# fails_late PATTERN COMMAND...: the command must end with exit code 1 and an error with PATTERN.
fails_late() {
  local status=0
  "${@:2}" > stdout.log 2> stderr.log < /dev/null || status=$?
  [[ $status == 1 ]] || fail "exit code $status instead of 1: $(< stderr.log)"
  grep -q -- "$1" stderr.log || fail "no '$1': $(< stderr.log)"
}

# The reference run saves once, at the end.
alone "${run[@]}" --save plain.safetensors --log plain.jsonl
rm config.json
equal_bytes 1 "without saves"

# best_step LOG: prints the step of the last evaluation that was the best so far.
best_step() { sed -nE 's/.*"type":"eval","step":([0-9]+),.*"best":true.*/\1/p' "$1" | tail -1; }

# same_saves FOLDER TEXT: FOLDER must have the same files as `first`.
same_saves() {
  diff <(cd first && find . -type f | sort) <(cd "$1" && find . -type f | sort) ||
    fail "other files: $2"
  (cd first && find . -type f) | while read -r file; do
    cmp "first/$file" "$1/$file" || fail "another $file: $2"
  done
}

mkdir first
alone "${run[@]}" --save first/model.safetensors --save-every 5 --save-best --log first.jsonl
equal_bytes 1 "a run with saves"
diff <(losses plain.jsonl) <(losses first.jsonl | sed 's/,"best":true//') ||
  fail "saving changes losses"
cmp plain.safetensors first/model.safetensors || fail "saving changes the weights"
[[ $(cd first && find . -name model.safetensors | sort | tr '\n' ' ') == \
  "./best/model.safetensors ./model.safetensors ./step-000000005/model.safetensors \
./step-000000010/model.safetensors " ]] || fail "$(find first)"
[[ $(grep -c '"type":"save"' first.jsonl) == 2 ]] || fail "$(grep save first.jsonl)"
grep -q '{"type":"save","step":5,"path":"first/step-000000005/model.safetensors"}' first.jsonl ||
  fail "$(grep save first.jsonl)"
# The log marks the evaluation with the lowest loss as the best.
lowest=$(sed -nE 's/.*"type":"eval","step":([0-9]+),"val_loss":([0-9.]+).*/\2 \1/p' first.jsonl |
  sort -g | sed -n 1p)
[[ $(best_step first.jsonl) == "${lowest#* }" ]] || fail "best: $(grep eval first.jsonl)"
must_work "$generate" first/best --tokens 3
# The save after the last step equals the final weights.
mkdir long
alone "${run[@]}" --save long/model.safetensors --save-every 12
cmp long/model.safetensors long/step-000000012/model.safetensors || fail "another last step"

# Saves are equal at every stage, on other numbers of ranks and with another bucket size.
for stage in 0 1 2 3; do
  rm -rf other
  mkdir other
  size=$((2 + stage % 2))
  ranks $size "${run[@]}" --save other/model.safetensors --save-every 5 --save-best \
    --stage $stage --bucket-bytes 4096 --log other.jsonl
  equal_bytes $size "stage $stage"
  same_saves other "stage $stage on $size ranks"
  ranks 2 "${run[@]}" --save other/model.safetensors --save-every 4 --save-best --precision bf16 \
    --stage $stage --checkpoint "kept-$stage" --checkpoint-every 4 --offload optimizer
  equal_bytes 2 "bf16, stage $stage"
done
rm -rf other

# A run that is killed and resumed on another number of ranks still knows its best evaluation.
wait_for() {
  for _ in $(seq 600); do
    grep -qE "$1" "$2" 2> /dev/null && return
    sleep 0.05
  done
  fail "no $1 in $2: $(cat "$2")"
}
many=(--data text.txt "${tiny[@]}" --steps 240 --eval-every 6 --eval-batches 1 --threads 1 --lr 0.03
  --save-every 40 --save-best)
rm -rf first && mkdir first killed
alone "${many[@]}" --save first/model.safetensors --log first.jsonl
for step in 30 90; do
  mpirun -n 2 "$train_gpt" "${many[@]}" --save killed/model.safetensors --checkpoint saved \
    --checkpoint-every 3 --log "$work/killed.jsonl" > output.log 2>&1 < /dev/null &
  job=$!
  wait_for "\"step\":$step," killed.jsonl
  pkill -KILL -f "^$train_gpt .*--log $work/killed.jsonl" || fail "nobody to kill before step $step"
  wait "$job" && fail "a killed job returned 0"
done
ranks 3 "${many[@]}" --save killed/model.safetensors --checkpoint saved --log killed.jsonl --stage 3
same_saves killed "killed and gone on with"
diff <(grep '"type":"eval"' first.jsonl) <(grep '"type":"eval"' killed.jsonl) || fail "other evals"
grep -q '"best": {' saved/step-000000240/manifest.json || fail "no best in the manifest"
# If the file of the best weights is missing, the resumed run warns, and its next evaluation counts
# as the best again.
rm -r killed/best saved/step-000000240
ranks 2 "${many[@]}" --save killed/model.safetensors --checkpoint saved --log killed.jsonl
grep -q 'the best weights so far, of step [0-9]*, are missing' stderr.log ||
  fail "$(cat stderr.log)"

# Evaluations of other data or batches cannot be compared with the best evaluation so far. So the
# first of them becomes the best. More steps, another warm-up and another learning rate do not
# change what is measured.
part=("${many[@]/240/14}" --save killed/model.safetensors --checkpoint part --log part.jsonl)
longer=("${part[@]/14/20}" --lr 0.02 --resume-changed steps,warmup,lr,min_lr)
rm -rf killed/*
alone "${part[@]}"
cp -r part again
alone "${longer[@]}"
! grep -q 'no longer count' stderr.log || fail "$(cat stderr.log)"
rm -r part && cp -r again part
alone "${longer[@]}" --eval-batches 2
measured='measured the loss with --eval-batches 1 on --data'
grep -q "$measured, but this run measures the loss with --eval-batches 2 on --data" stderr.log ||
  fail "$(cat stderr.log)"
grep -q '"type":"eval","step":18,.*"best":true' part.jsonl || fail "$(grep eval part.jsonl)"
# If other weights have replaced the best ones, an evaluation that is not better does not overwrite
# them. The learning rate is too low to change the weights, so no evaluation is better.
rm -r part && mv again part
cp first/step-000000040/model.safetensors killed/best
fails_late 'the best weights, of step [0-9]*, are lost: killed/best/model.safetensors has other' \
  "$train_gpt" "${longer[@]}" --lr 1e-30
grep -q 'the best weights so far, of step [0-9]*, were replaced by others, which stay' stderr.log ||
  fail "$(cat stderr.log)"
grep -q '"type":"eval","step":18,' part.jsonl || fail "$(grep eval part.jsonl)"
[[ $(best_step part.jsonl) -le 14 ]] || fail "$(grep eval part.jsonl)"
cmp first/step-000000040/model.safetensors killed/best/model.safetensors || fail "overwritten"

# train_resnet and train_recommender save weights during a run, too.
mkdir image
must_work mpirun -n 2 "$train_resnet" --steps 6 --batch 12 --micro-batch 4 --eval-every 2 \
  --threads 1 --save image/model.safetensors --save-every 3 --save-best --log image.jsonl --stage 3
equal_bytes 2 "train_resnet"
cmp image/model.safetensors image/step-000000006/model.safetensors || fail "another last step"
grep -q '"best":true' image.jsonl && [[ -s image/best/model.safetensors ]] || fail "no best image"
mkdir ratings
for objective in rating ranking; do
  must_work mpirun -n 2 "$train_recommender" --steps 6 --batch 60 --micro-batch 12 --factors 10 \
    --eval-every 2 --threads 1 --objective $objective --save ratings/$objective.safetensors \
    --save-every 3 --save-best --log ratings.jsonl
  equal_bytes 2 "train_recommender"
  cmp ratings/$objective.safetensors ratings/step-000000006/$objective.safetensors ||
    fail "another last step"
  grep -q '"best":true' ratings.jsonl && [[ -s ratings/best/$objective.safetensors ]] ||
    fail "no best recommender"
done

# The plan's table shows the memory that saves take.
alone --plan "${run[@]}"
cp stdout.log plain.txt
! grep -q 'nothing is written' stderr.log || fail "$(cat stderr.log)"
alone --plan "${run[@]}" --save model.safetensors --save-every 5
grep -q -- '--plan takes no step, so nothing is written for --save, --save-every$' stderr.log ||
  fail "$(cat stderr.log)"
grep -q 'a save besides' stdout.log || fail "$(cat stdout.log)"
! grep -q 'a save besides' plain.txt || fail "a save in a run without one"

# Impossible combinations are refused.
save=("$train_gpt" "${run[@]}" --save model.safetensors)
expect 'save-every is 0, expected at least 1' "${save[@]}" --save-every 0
expect 'save-every is -3, expected at least 1' "${save[@]}" --save-every -3
expect '--save-every: give --save' "$train_gpt" "${run[@]}" --save-every 5
expect '--save-best: give --save' "$train_gpt" "${run[@]}" --save-best
expect '--save-best: no evaluation' "${save[@]}" --save-best --eval-every 0
expect 'leave out --save-best' "$train_recommender" --split none --save-best --save model
expect 'is what --init reads' "$train_gpt" --data text.txt --init first/best/model.safetensors \
  --save first/model.safetensors --save-best
expect 'is what --init reads' "$train_gpt" --data text.txt \
  --init first/step-000000080/model.safetensors --save first/model.safetensors --save-every 20
mkdir -p best && cp text.txt best/model.safetensors
expect 'is what --data reads' "$train_gpt" --data best/model.safetensors --save model.safetensors \
  --save-best
expect '--save best is the folder in which --save-best writes' "$train_gpt" "${run[@]}" \
  --save best --save-best
expect 'writes folders of the same names there' "${save[@]}" --save-every 5 --checkpoint .
sed -E 's/("n_layer": *)2/\13/' long/config.json > best/config.json
expect 'best/config.json' "${save[@]}" --save-best
rm -r best
# A file of the user has the name of the folder of --save-best.
echo notes > best
refused='^error: --save-best: the folder best cannot be made: File exists$'
expect "$refused" "${save[@]}" --save-best --log refused.jsonl
for program in "$train_resnet" "$train_recommender"; do
  expect "$refused" "$program" --steps 1 --save model.safetensors --save-best --log refused.jsonl
done
[[ $(< best) == notes && ! -e refused.jsonl ]] || fail "a refused run wrote: $(cat best)"
rm best

# If a file of the user has the name of a save's folder, training warns and keeps the file. The exit
# code is 0 only if a later save succeeds.
mkdir taken
echo notes > taken/step-000000002
blocked=("$train_gpt" "${run[@]}" --eval-every 0 --save taken/model.safetensors --save-every 2)
not_made='step 2 were not saved: the folder taken/step-000000002 cannot be made: Not a directory;'
fails_late 'the weights of step 2 were not written to taken/step-000000002/model.safetensors$' \
  "${blocked[@]}" --steps 3
grep -q "$not_made" stderr.log || fail "$(cat stderr.log)"
[[ -s taken/model.safetensors ]] || fail "no weights at the end"
must_work "${blocked[@]}" --steps 4
grep -q "$not_made" stderr.log || fail "$(cat stderr.log)"
[[ $(< taken/step-000000002) == notes ]] || fail "a file of the user was removed"

# On a full disk, training warns, continues, and has the same losses. The last weights are saved in
# another folder.
if unshare --mount --map-root-user mount -t tmpfs none "$work" 2> /dev/null; then
  mkdir -p disk
  kilobytes=$((($(stat -c %s plain.safetensors) + 4095) / 4096 * 4))
  unshare --mount --map-root-user bash -ec '
    mount -t tmpfs -o size="$0"k none disk
    mkdir disk/best disk/step-000000004
    "$@"
    find disk -type f > left.txt' $((kilobytes * 3 / 2 + 8)) \
    mpirun -n 2 "$train_gpt" "${run[@]}" --save-every 4 --save disk/model.safetensors \
    --log full.jsonl > stdout.log 2> stderr.log < /dev/null &&
    fail "the last save has room: $(cat left.txt)"
  grep -q '"type":"summary".*"equal":true,"ranks"' full.jsonl || fail "$(grep summary full.jsonl)"
  grep -q 'the weights of step 8 were not saved: .*No space left on device; training goes on' \
    stderr.log || fail "$(cat stderr.log)"
  [[ $(grep -c '"type":"save".*"failed":".*No space left on device"' full.jsonl) == 2 ]] ||
    fail "$(grep save full.jsonl)"
  diff <(losses plain.jsonl) <(losses full.jsonl) || fail "a full disk changes losses"
  grep -q 'the weights are in .* instead' stderr.log || fail "$(cat stderr.log)"
else
  printf 'skipped, because no small disk can be mounted here: saves on a full disk\n'
fi

"${CXX:-c++}" -std=c++20 -shared -fPIC -O1 -o faults.so \
  "$TESSERA_SOURCE_DIR/tests/apps/file_faults.cpp" -ldl || fail "no library of faults"
# A save flushes the weights and config.json once each. If the disk is full when the weights are
# flushed, both files of the model that was saved before are unchanged.
replace=("$train_gpt" "${run[@]}" --steps 1 --eval-every 0
  --save "$work/replaced/model.safetensors")
mkdir replaced
must_work env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/replaced/" FAULT_CALLS=fsync \
  FAULT_COUNT="$work/count.txt" "${replace[@]}" --width 32
[[ $(< count.txt) == 2 ]] || fail "$(< count.txt) calls of fsync"
cp -r replaced larger
status=0
LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/replaced/model.safetensors" FAULT_CALLS=fsync \
  FAULT_AT=1 FAULT=ENOSPC "${replace[@]}" --report rescued.html --csv rescued.csv \
  --trace rescued.json > stdout.log 2> stderr.log < /dev/null || status=$?
[[ $status == 1 ]] || fail "exit code $status instead of 1: $(< stderr.log)"
grep -q 'replaced/model.safetensors: writing failed: No space left on device' stderr.log ||
  fail "$(< stderr.log)"
diff -r replaced larger || fail "a save that failed has changed a file"
# The weights are in another folder, and the run's other files are written.
grep -q 'the weights are in .* instead$' stderr.log || fail "$(< stderr.log)"
grep -q "the weights were not written to $work/replaced/model.safetensors\$" stderr.log ||
  fail "$(< stderr.log)"
for file in rescued.html rescued.csv rescued.json; do [[ -s $file ]] || fail "no $file"; done
grep -q '"type":"summary"' rescued.jsonl || fail "no summary: $(< rescued.jsonl)"

# During a run, weights of another size are saved in the folder of --save. The run must not replace
# their config.json, so it must save its own weights in another folder.
mkdir shared
"$train_gpt" "${run[@]}" --steps 1000 --eval-every 0 --width 32 --save shared/late.safetensors \
  --lr 0.001 --log shared.jsonl > stdout.log 2> stderr.log < /dev/null &
job=$!
wait_for '"step":1,' shared.jsonl
kill -STOP "$job" || fail "the run has ended before other weights were there: $(< stderr.log)"
cp long/model.safetensors long/config.json shared
kill -CONT "$job"
status=0
wait "$job" || status=$?
[[ $status == 1 ]] || fail "exit code $status instead of 1: $(< stderr.log)"
grep -q 'model.safetensors would be left without its sizes, .*; the weights are in .* instead$' \
  stderr.log || fail "$(< stderr.log)"
[[ $(ls shared) == $'config.json\nmodel.safetensors' ]] || fail "$(ls shared)"
must_work "$generate" shared --tokens 3
# If the folder cannot be read, it may have such weights, so the run is refused. In the first run,
# the last call of readdir finds the weights. In the second run, this call fails.
faulty=(env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/shared" FAULT_CALLS=readdir)
other=("$train_gpt" "${run[@]}" --width 32 --save "$work/shared/other.safetensors")
expect 'model.safetensors would be left without its sizes' \
  "${faulty[@]}" FAULT_COUNT="$work/count.txt" "${other[@]}"
fails_late "$work/shared: cannot be read: Input/output error\$" \
  "${faulty[@]}" FAULT_AT="$(< count.txt)" FAULT=EIO "${other[@]}"
[[ $(ls shared) == $'config.json\nmodel.safetensors' ]] || fail "$(ls shared)"

# If the best weights cannot be written, the run goes on, and the exit code is 1 unless a later save
# succeeds.
mkdir best_lost
unsaved=(env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/best_lost/best/" FAULT_CALLS=fsync
  FAULT_AT=1 FAULT=ENOSPC "$train_gpt" "${run[@]}" --save "$work/best_lost/model.safetensors"
  --save-best)
fails_late "the weights of step 1 were not written to $work/best_lost/best/model.safetensors\$" \
  "${unsaved[@]}" --steps 1 --eval-every 1
grep -q 'the weights of step 1 were not saved: .*; training goes on' stderr.log ||
  fail "$(< stderr.log)"
[[ -s best_lost/model.safetensors && ! -e best_lost/best ]] || fail "$(find best_lost)"
must_work "${unsaved[@]}" --steps 2 --eval-every 1
grep -q 'the weights of step 1 were not saved: .*; training goes on' stderr.log ||
  fail "$(< stderr.log)"
[[ -s best_lost/best/model.safetensors ]] || fail "$(find best_lost)"

# With a limited staging copy and a slow disk, the update waits until the thread that writes the
# checkpoint has read the state. Results do not change.
digest() {
  sed -nE "s/.*\"type\":\"checkpoint\",\"step\":$2,.*\"digest\":\"([0-9a-f]+)\".*/\1/p" "$1"
}
few=("${run[@]}" --steps 4 --warmup 1 --checkpoint-every 2)
alone "${few[@]}" --checkpoint all --log all.jsonl
# copied LOG: prints the largest staging copy that is planned for any rank, in bytes.
copied() {
  grep -oE '"checkpoint":\{"planned":[0-9]+' "$1" | grep -oE '[0-9]+$' | sort -n | tail -1
}
whole=$(copied all.jsonl)
[[ -n $(digest all.jsonl 2) && -n $(digest all.jsonl 4) && $whole -gt 50000 ]] ||
  fail "$(cat all.jsonl)"
for stage in 0 1 2 3; do
  for limit in 0 20K; do
    rm -rf limited
    must_work mpirun -n $((1 + stage % 3)) -x LD_PRELOAD="$work/faults.so" \
      -x FAULT_FOLDER="$work/limited/step-" -x FAULT_DELAY_MS=3 \
      "$train_gpt" "${few[@]}" --checkpoint "$work/limited" --checkpoint-staging $limit \
      --stage $stage --log limited.jsonl
    equal_bytes $((1 + stage % 3)) "a limited copy at stage $stage"
    for step in 2 4; do
      [[ $(digest limited.jsonl $step) == $(digest all.jsonl $step) ]] ||
        fail "another checkpoint of step $step: stage $stage, $limit"
    done
    diff <(losses all.jsonl) <(losses limited.jsonl) || fail "other losses: stage $stage, $limit"
    [[ $(copied limited.jsonl) -le 20000 && $(copied limited.jsonl) -gt 0 ]] ||
      fail "$(copied limited.jsonl) of $whole bytes are copied"
    grep -q '"step":3,.*"checkpoint_wait_ms":[1-9]' limited.jsonl ||
      fail "no wait: $(cat limited.jsonl)"
    grep -q '"type":"checkpoint","step":2,"wait_ms":[1-9]' limited.jsonl ||
      fail "no wait: $(cat limited.jsonl)"
  done
done
# If the staging copy has no limit, no step waits for a slow disk. A checkpoint that falls due while
# another one is being written is skipped, and the user is told.
must_work env LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/slow/step-" FAULT_DELAY_MS=10 \
  "$train_gpt" "${run[@]}" --checkpoint-every 1 --checkpoint "$work/slow" --log slow.jsonl
skips=$(grep -c '"type":"checkpoint",.*"skipped":true,"writing":' slow.jsonl) ||
  fail "no checkpoint was skipped: $(cat slow.jsonl)"
grep -q 'the checkpoint of step 2 is skipped, because that of step 1 is' stderr.log ||
  fail "$(cat stderr.log)"
[[ $(grep -c ' is skipped' stderr.log) == 1 ]] || fail "$(cat stderr.log)"
grep -qE "$skips of the run's checkpoints (was|were) skipped" stderr.log || fail "$(cat stderr.log)"
! grep -q wait_ms slow.jsonl || fail "a wait for a whole copy: $(cat slow.jsonl)"
# If a rank fails while its thread writes a checkpoint to a slow disk, the rank must report its
# error at once. If it waited for the thread, the other rank would reach its time limit first, and
# would report the failed rank as lost.
failing=("$train_gpt" "${run[@]}" --eval-every 0 --lr 1e30 --warmup 0
  --checkpoint "$work/stuck" --checkpoint-every 1 --comm-timeout 3)
fails_late '^rank 0: step 2: the loss is not finite' mpirun -n 1 env LD_PRELOAD="$work/faults.so" \
  FAULT_FOLDER="$work/stuck/step-" FAULT_DELAY_MS=20000 "${failing[@]}" : -n 1 "${failing[@]}"
! grep -q 'nothing has moved' stderr.log || fail "$(cat stderr.log)"
[[ ! -e stuck/step-000000001 ]] || fail "the checkpoint was written before the failure"
alone --plan "${few[@]}" --checkpoint all
grep -q 'checkpoint besides' stdout.log || fail "$(cat stdout.log)"
grep -q 'nothing is written for --checkpoint$' stderr.log || fail "$(cat stderr.log)"
expect '--checkpoint-staging limits' "$train_gpt" "${run[@]}" --checkpoint-staging 1MiB
expect '--checkpoint-staging limits' "$train_gpt" "${run[@]}" --checkpoint all \
  --checkpoint-async off --checkpoint-staging 0
expect 'expected a number' "$train_gpt" "${run[@]}" --checkpoint all --checkpoint-staging much
