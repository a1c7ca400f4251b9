#!/usr/bin/env bash
# ctest: TIMEOUT 600 PROCESSORS 1
# A run that is stopped or killed and then resumed, on other numbers of ranks and at another stage,
# has the losses and the checkpoint digest of an uninterrupted run, and logs each step once. Bad
# input is refused, and damaged checkpoints are skipped.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
run=(--data text.txt "${tiny[@]}" --steps 12 --eval-every 5 --eval-batches 2 --threads 1)
train_resnet=$TESSERA_BIN/train_resnet
train_recommender=$TESSERA_BIN/train_recommender

# digest LOG STEP: prints the digest that LOG has for the checkpoint of step STEP.
digest() {
  sed -nE "s/.*\"type\":\"checkpoint\",\"step\":$2,.*\"digest\":\"([0-9a-f]+)\".*/\1/p" "$1"
}

# Runs the reference on one rank. The reference saves only at the end.
alone "${run[@]}" --checkpoint whole --log whole.jsonl --save whole.safetensors
grep -q 'planned and measured are equal on all ranks (1)' stdout.log || fail "$(cat stdout.log)"
expected=$(digest whole.jsonl 12)
[[ $expected =~ ^[0-9a-f]{32}$ ]] || fail "no digest in $(cat whole.jsonl)"

# like_whole LOG TEXT: the log must have the losses of the reference, each step once, and the
# reference's digest. TEXT describes the run in errors.
like_whole() {
  diff <(losses whole.jsonl) <(losses "$1") || fail "other losses: $2"
  [[ $(digest "$1" 12) == "$expected" ]] || fail "another digest: $2"
}

# A run that saves during steps (async), and a run that saves between steps, have the results of the
# reference. Memory and traffic are as planned.
for async in on off; do
  ranks 2 "${run[@]}" --checkpoint "$async" --checkpoint-every 2 --checkpoint-async "$async" \
    --log "$async.jsonl"
  grep -q 'planned and measured are equal on all ranks (2)' stdout.log || fail "$(cat stdout.log)"
  like_whole "$async.jsonl" "async $async"
done
[[ $(ls off) == $'lock\nstep-000000008\nstep-000000010\nstep-000000012' ]] || fail "kept: $(ls off)"

# Runs the lines of docs/checkpoints.md that read one tensor with Python's safetensors package.
if python3 -c 'import numpy, safetensors' 2> import.log; then
  sed -n '/^```python/,/^```/p' "$TESSERA_SOURCE_DIR/docs/checkpoints.md" | sed '/^```/d' > read.py
  python3 read.py off/step-000000008 wte.weight exp_avg > read.txt
  grep -q '^4096 \[' read.txt || fail "$(cat read.txt)"
else
  printf 'skipped, because Python has no safetensors: reading a tensor as the documentation does\n'
fi

# go_on N FOLDER ARGUMENT...: resumes on N ranks from the newest undamaged checkpoint in FOLDER. The
# run must end like the reference.
go_on() {
  ranks "$1" "${run[@]}" --checkpoint "$2" --log "$2.jsonl" "${@:3}"
  grep -q "planned and measured are equal on all ranks ($1)" stdout.log || fail "$(cat stdout.log)"
  like_whole "$2.jsonl" "$1 ranks, $*"
}
# Resumes a run of two ranks on other numbers of ranks and at other stages.
rm -r off/step-000000012
cp off.jsonl kept.jsonl
go_on 3 off --stage 3 --bucket-bytes 4096
grep -q 'going on from off/step-000000010' stderr.log || fail "$(cat stderr.log)"
rm -r off/step-000000012 off/step-000000010
go_on 1 off --stage 0 --recompute
ranks 5 "${run[@]}" --resume off/step-000000008 --checkpoint elsewhere --log off.jsonl --stage 1
grep -q '^6 micro-batches on 5 ranks: some ranks will idle' stderr.log || fail "$(cat stderr.log)"
like_whole off.jsonl "from a folder that was named"
# Resumes a run that has finished all its steps.
ranks 2 "${run[@]}" --checkpoint elsewhere --log off.jsonl
grep -q 'all 12 steps are done; .* give --steps and --resume-changed steps,warmup$' stderr.log ||
  fail "$(cat stderr.log)"
like_whole off.jsonl "nothing left to do"
ranks 2 "${run[@]}" --checkpoint elsewhere --log late.jsonl --quiet
grep -q -- '--log late.jsonl is not written, because no step is left' stderr.log ||
  fail "$(cat stderr.log)"
# The program report can make what is not written only if there is a log.
ranks 2 "${run[@]}" --checkpoint elsewhere --csv late.csv --quiet
grep -q -- '--csv late.csv is not written, because no step is left$' stderr.log ||
  fail "$(cat stderr.log)"
ranks 2 "${run[@]}" --checkpoint elsewhere --csv late.csv --log off.jsonl --quiet
grep -q -- 'no step is left; the program report makes it from off.jsonl$' stderr.log ||
  fail "$(cat stderr.log)"
# If no step is left, --save is written from the last checkpoint, and replaces an existing file. So
# a run that was killed between its last checkpoint and the end can be started again to get its
# weights.
echo damaged > late.safetensors
for n in 1 2; do
  ranks $n "${run[@]}" --checkpoint elsewhere --save late.safetensors --stage 3
  grep -q -- '--save late.safetensors is written from elsewhere/step-000000012, because' \
    stderr.log || fail "$(cat stderr.log)"
  cmp late.safetensors whole.safetensors || fail "other weights without a step on $n ranks"
  rm late.safetensors
done
expect 'no/late.safetensors' "$train_gpt" "${run[@]}" --checkpoint elsewhere \
  --save no/late.safetensors --quiet
# If the run ends before the step of the checkpoint, --save is refused, because the weights of the
# run's last step are not known. Without --save the run does nothing.
early=("${run[@]}" --steps 8 --resume-changed steps,warmup --checkpoint elsewhere)
expect '--save early.safetensors: elsewhere/step-000000012 is of step 12, .* of step 8 are not' \
  "$train_gpt" "${early[@]}" --save early.safetensors --log early.jsonl
[[ ! -e early.safetensors && ! -e early.jsonl ]] || fail "a refused run wrote files"
must_work "$TESSERA_BIN/checkpoint" export elsewhere/step-000000012 early.safetensors
cmp early.safetensors whole.safetensors || fail "other weights by the command in the error"
alone "${early[@]}"
grep -q '^all 8 steps are done, because elsewhere/.* is of step 12; .* give --steps above 12$' \
  stderr.log || fail "$(cat stderr.log)"
alone "${run[@]}" --resume elsewhere/step-000000012 --checkpoint third \
  --save late.safetensors --save-every 5 --save-best --sample 3 --quiet
cmp late.safetensors whole.safetensors || fail "other weights beside outputs of steps"
for text in 'no step is left, so nothing is written for --save-every, --save-best, --sample$' \
  '--checkpoint third is not written, .* the run.s last checkpoint is elsewhere/step-000000012$'; do
  grep -q -- "$text" stderr.log || fail "$(cat stderr.log)"
done
alone "${run[@]}" --resume elsewhere/step-000000012 --checkpoint elsewhere --quiet
[[ ! -s stderr.log ]] || fail "$(cat stderr.log)"
# No output may damage a checkpoint, whether the run reads it or not.
before=$(cat elsewhere/step-000000012/* | sha256sum)
for output in "--save manifest.json" "--trace manifest.json" "--csv new.csv" "--report new.html"; do
  expect 'is in the checkpoint .*, which would be damaged' "$train_gpt" "${run[@]}" \
    "${output% *}" "elsewhere/step-000000012/${output#* }"
done
# --checkpoint refuses the path of a single checkpoint, and paths with the name of one.
one=elsewhere/step-000000012
expect "$one is a single checkpoint; give --checkpoint elsewhere, or --resume $one\$" "$train_gpt" \
  "${run[@]}" --checkpoint $one
expect "$one/ is a single checkpoint; give --checkpoint elsewhere, or --resume $one/" "$train_gpt" \
  "${run[@]}" --checkpoint $one/ --eval-only
expect 'is a single checkpoint; give --checkpoint ., or --resume step-000000012$' \
  env -C elsewhere "$train_gpt" "${run[@]/text.txt/$work/text.txt}" --checkpoint step-000000012
# If an error proposes flags, their paths are quoted for the shell.
ln -s elsewhere 'else where'
expect "give --checkpoint 'else where', or --resume 'else where/step-000000012'\$" "$train_gpt" \
  "${run[@]}" --checkpoint 'else where/step-000000012'
expect 'not-yet/step-000000040 has the name of a single checkpoint' "$train_gpt" "${run[@]}" \
  --checkpoint not-yet/step-000000040
cp -r $one renamed
expect 'renamed is a checkpoint whose folder was renamed; give --checkpoint another folder' \
  "$train_gpt" "${run[@]}" --checkpoint renamed
expect 'renamed/manifest.json is in the checkpoint .*/renamed, which would be damaged' \
  "$train_gpt" "${run[@]}" --trace renamed/manifest.json
expect 'renamed is a checkpoint, expected weights; write its weights to a file: checkpoint export' \
  "$train_gpt" "${run[@]}" --init renamed
ln -s $one link
expect 'link is the checkpoint .*, which would be damaged' "$train_gpt" "${run[@]}" \
  --checkpoint link
[[ $(cat elsewhere/step-000000012/* | sha256sum) == "$before" ]] || fail "a checkpoint was damaged"
# No output may replace the lock of a folder of checkpoints, whether the folder exists or not.
expect 'elsewhere/lock is the lock of the checkpoints' "$train_gpt" "${run[@]}" \
  --trace elsewhere/lock
expect 'is the lock of the folder of --checkpoint' "$train_gpt" "${run[@]}" --checkpoint not-yet \
  --log not-yet/lock
# Outputs are not written where writers of checkpoints would remove or replace them.
for output in --csv --tensorboard; do
  expect 'removed as an unfinished checkpoint, because of the name step-000000009.partial' \
    "$train_gpt" "${run[@]}" $output elsewhere/step-000000009.partial/out
  expect 'is where --checkpoint writes a checkpoint' "$train_gpt" "${run[@]}" \
    --checkpoint not-yet $output not-yet/step-000000007/out
done
expect 'step-000000012 there is a checkpoint; give --save another folder' "$train_gpt" "${run[@]}" \
  --save elsewhere/model.safetensors --save-every 5

# wait_for PATTERN FILE: waits until FILE has a line with PATTERN.
wait_for() {
  for _ in $(seq 600); do
    grep -qE "$1" "$2" 2> /dev/null && return
    sleep 0.05
  done
  fail "no $1 in $2: $(cat "$2")"
}

# SIGUSR1 saves and training continues; SIGUSR2 and SIGTERM save and end with code 0. Signals are
# sent to mpirun and to a single rank.
long=(--data text.txt "${tiny[@]}" --steps 100000 --eval-every 0 --threads 1 --checkpoint asked
  --log asked.jsonl)
mpirun -n 2 "$train_gpt" "${long[@]}" > output.log 2>&1 < /dev/null &
job=$!
wait_for '"step":3,' asked.jsonl
kill -USR1 "$(pgrep -n -f "^$train_gpt .*--checkpoint asked")"
wait_for '"type":"checkpoint"' asked.jsonl
kill -USR2 "$job"
status=0
wait "$job" || status=$?
[[ $status == 0 ]] || fail "exit code $status after SIGUSR2: $(cat output.log)"
grep -q 'the same command goes on from asked/step-' output.log || fail "$(cat output.log)"
[[ $(find asked -name 'step-*' | wc -l) == 2 ]] || fail "$(ls asked)"
stopped=$(grep -c '"type":"step"' asked.jsonl)
mpirun -n 3 "$train_gpt" "${long[@]}" > output.log 2>&1 < /dev/null &
job=$!
wait_for "\"step\":$((stopped + 2))," asked.jsonl
kill -TERM "$(pgrep -n -f "^$train_gpt .*--checkpoint asked")"
status=0
wait "$job" || status=$?
[[ $status == 0 ]] || fail "exit code $status after SIGTERM to a rank: $(cat output.log)"
twice=$(grep '"type":"step"' asked.jsonl | grep -oE '"step":[0-9]+' | uniq -d)
[[ -z $twice ]] || fail "$twice twice"
# If the checkpoint on SIGUSR2 cannot be written, the run saves its weights and ends with code 1,
# and does not print the tables of plan and measurement. Here the checkpoint cannot be written,
# because a file replaces the folder of checkpoints.
for ranks in 1 2; do
  mpirun -n "$ranks" "$train_gpt" "${long[@]}" --checkpoint lost --log lost.jsonl \
    --eval-every 99999 --save lost.safetensors --trace lost.json > output.log 2>&1 < /dev/null &
  job=$!
  wait_for '"step":3,' lost.jsonl
  rm -r lost && touch lost
  kill -USR2 "$job"
  status=0
  wait "$job" || status=$?
  [[ $status == 1 ]] || fail "exit code $status with a lost checkpoint: $(cat output.log)"
  grep -q 'lost: the checkpoint of step [0-9]* was not written: .*Not a directory' output.log ||
    fail "no reason: $(cat output.log)"
  if grep -q 'planned and measured' output.log; then fail "$(cat output.log)"; fi
  must_work "$generate" lost.safetensors --tokens 3
  [[ -s lost.json ]] || fail "no trace"
  rm lost*
done

# A run that is killed at any moment resumes from the newest undamaged checkpoint, and ends like a
# run that was not killed.
many=(--data text.txt "${tiny[@]}" --steps 400 --eval-every 0 --threads 1)
alone "${many[@]}" --checkpoint quiet --log quiet.jsonl
for step in 15 40 70 120; do
  mpirun -n 2 "$train_gpt" "${many[@]}" --checkpoint killed --checkpoint-every 1 \
    --log "$work/killed.jsonl" > output.log 2>&1 < /dev/null &
  job=$!
  wait_for "\"step\":$step," killed.jsonl
  # If the previous kill came late, the log already had this step, and the ranks may still start.
  until pkill -KILL -f "^$train_gpt .*--log $work/killed.jsonl"; do
    kill -0 "$job" || fail "the run has ended before it was killed: $(cat output.log)"
    sleep 0.05
  done
  wait "$job" && fail "a killed job returned 0"
done
ranks 3 "${many[@]}" --checkpoint killed --log killed.jsonl --stage 3
grep -qE 'going on from killed/step-0000001[0-9]{2}' stderr.log || fail "$(cat stderr.log)"
diff <(losses quiet.jsonl) <(losses killed.jsonl) || fail "other losses after kills"
[[ $(digest killed.jsonl 400) == $(digest quiet.jsonl 400) ]] || fail "another digest after kills"
[[ $(find killed -name '*.partial' | wc -l) == 0 ]] || fail "left behind: $(ls killed)"

# A damaged checkpoint is skipped, with a warning that names it. If all checkpoints are damaged,
# training does not start.
ranks 2 "${run[@]}" --checkpoint damaged --checkpoint-every 5 --checkpoint-async off \
  --log damaged.jsonl
rm -r damaged/step-000000012
printf x | dd of="$(ls damaged/step-000000010/shard-00002*)" bs=1 seek=9000 conv=notrunc 2> dd.log
go_on 2 damaged
grep -q 'step-000000010 is passed over: .*shard-00002-of-00002.safetensors: elements' stderr.log ||
  fail "$(cat stderr.log)"
rm -r damaged/step-000000012
for manifest in damaged/*/manifest.json; do sed -i 's/"step": [0-9]*/"step": 7/' "$manifest"; done
expect 'no checkpoint there is whole' mpirun -n 2 "$train_gpt" "${run[@]}" --checkpoint damaged

# Settings and data that differ from those of the checkpoint are refused, except settings that
# --resume-changed names.
expect 'settings differ from those of the run that wrote on/step-000000012: lr is 0.5 instead' \
  "$train_gpt" "${run[@]}" --steps 20 --resume-changed steps,warmup --lr 0.5 --checkpoint on
grep -q -- '; give the same values, another folder, or --resume-changed steps,warmup,lr,min_lr$' \
  stderr.log || fail "$(cat stderr.log)"
expect 'data is .* bytes with digest' "$train_gpt" \
  "${run[@]/text.txt/$TESSERA_SOURCE_DIR/README.md}" --steps 20 --resume-changed steps,warmup \
  --checkpoint on
# Without --val-data, the run trains on the first 90 % of --data, with --val-data on all of it. So a
# resume may add or drop --val-data only with --resume-changed training_part. It may always name
# another file for --val-data.
cp text.txt other.txt
expect 'training_part is all of --data (with --val-data) instead of 90 % of --data (without' \
  "$train_gpt" "${run[@]}" --steps 20 --resume-changed steps,warmup --val-data other.txt \
  --checkpoint on
grep -q -- ' or --resume-changed steps,warmup,training_part$' stderr.log || fail "$(< stderr.log)"
alone "${run[@]}" --val-data other.txt --checkpoint validated
alone "${run[@]}" --steps 13 --resume-changed steps,warmup --val-data text.txt \
  --checkpoint validated
expect 'training_part is 90 % of --data (without --val-data) instead of all of --data (with' \
  "$train_gpt" "${run[@]}" --steps 14 --resume-changed steps,warmup --checkpoint validated
alone "${run[@]}" --steps 14 --resume-changed steps,warmup,training_part --checkpoint validated
# With --threads 0, the default, a resumed run has as many threads as the checkpoint's run. The
# number in OMP_NUM_THREADS is not used.
cp -r on more
OMP_NUM_THREADS=2 alone "${run[@]}" --steps 14 --resume-changed 'steps, warmup' --threads 0 \
  --checkpoint more --log more.jsonl
[[ $(digest more.jsonl 14) != '' ]] || fail "$(cat more.jsonl)"
grep -q '"threads":"1"' more/step-000000014/manifest.json || fail "the threads of the run changed"
must_work "$train_gpt" --help
[[ $(tr -s '[:space:]' ' ' < stdout.log) == *"in a resumed run those of the checkpoint"* ]] ||
  fail "$(cat stdout.log)"
# A folder of weights from --save-every has the name of a checkpoint. It must not be removed as an
# old checkpoint.
mkdir -p beside/step-000000001
echo weights > beside/step-000000001/model.safetensors
cp -r beside weights
alone "${run[@]}" --steps 14 --resume-changed steps,warmup --resume on/step-000000012 \
  --checkpoint beside --checkpoint-every 1 --checkpoint-keep 1 --checkpoint-async off
[[ $(ls beside) == $'lock\nstep-000000001\nstep-000000014' ]] || fail "kept: $(ls beside)"
# Nor is it a checkpoint, and a run whose checkpoints would replace it is refused.
for resume in latest never; do
  expect 'weights/step-000000001 has files of no checkpoint, .*; give the checkpoints another' \
    "$train_gpt" "${run[@]}" --checkpoint weights --resume $resume
done
expect 'loss_rows is 64 but not set in the checkpoint' "$train_gpt" "${run[@]}" --steps 20 \
  --resume-changed steps,warmup --loss-rows 64 --checkpoint on
# With --reduction fast, the bits depend on the number of ranks, the stage and the size of buckets.
fast=("${run[@]}" --reduction fast --checkpoint fast)
ranks 2 "${fast[@]}" --stage 1 --bucket-bytes 4KiB
expect 'ranks is 1 instead of 2, stage is 3 instead of 1, bucket_bytes is 2048 instead of 4096; ' \
  "$train_gpt" "${fast[@]}" --stage 3 --bucket-bytes 2KiB
grep -q -- ' or --resume-changed ranks,stage,bucket_bytes$' stderr.log || fail "$(cat stderr.log)"
alone "${fast[@]}" --stage 3 --bucket-bytes 2KiB --steps 14 \
  --resume-changed steps,warmup,ranks,stage,bucket_bytes
# --resume-changed is not proposed, and is refused, for settings on which the tensors depend.
for changed in steps,warmup steps,warmup,model.width; do
  expect 'model.width is 32 instead of 16; .*: model.width must be as in the checkpoint' \
    "$train_gpt" "${run[@]}" --steps 20 --resume-changed $changed --width 32 --checkpoint on
  ! grep -q -- '--resume-changed' stderr.log || fail "$(cat stderr.log)"
done
# Settings are compared even if no step is left. The error has all differences, in one line.
expect 'lr is 0.5 instead of 0.001, min_lr is .*, clip is 2 instead of 1; ' \
  "$train_gpt" "${run[@]}" --lr 0.5 --clip 2 --checkpoint on
# For the checkpoint of another program, the error names both programs instead of all settings.
expect 'on/step-000000012 was written by train_gpt, expected a checkpoint of train_resnet$' \
  "$train_resnet" --batch 12 --micro-batch 4 --steps 20 --threads 1 --checkpoint on
# Flags and folders that make no sense are refused.
expect 'there is no such setting' "$train_gpt" "${run[@]}" --steps 20 --resume-changed stpes \
  --checkpoint on
expect 'stpes: there is no such setting' "$train_gpt" "${run[@]}" --resume-changed stpes \
  --checkpoint first-start
expect '--resume-changed stage: leave it out, because stage may always change' "$train_gpt" \
  "${run[@]}" --resume-changed stage --checkpoint on
expect 'no such setting, expected model.layers' "$train_gpt" "${run[@]}" --resume-changed layers \
  --checkpoint on
expect 'give --checkpoint' "$train_gpt" "${run[@]}" --checkpoint-every 2
expect 'give --checkpoint' "$train_gpt" "${run[@]}" --resume latest
expect 'there is no checkpoint to resume from; give --checkpoint or --resume$' "$train_gpt" \
  "${run[@]}" --resume-changed lr
for folder in '' '--checkpoint not-yet'; do
  expect '--resume-changed has no effect with --resume never' "$train_gpt" "${run[@]}" $folder \
    --resume never --resume-changed lr
done
expect 'nowhere: there is no such folder' "$train_gpt" "${run[@]}" --resume nowhere
expect 'off/lock is a file, expected the folder' "$train_gpt" "${run[@]}" --resume off/lock
expect 'off is a folder of checkpoints; name one of them, such as off/step-0000000' \
  "$train_gpt" "${run[@]}" --resume off
expect 'cannot be made' "$train_gpt" "${run[@]}" --checkpoint text.txt/run
mkdir pictures
expect '--checkpoint pictures is what --data reads' "$train_resnet" --data pictures \
  --checkpoint pictures
expect 'at least 1' "$train_gpt" "${run[@]}" --checkpoint on --checkpoint-keep 0

# With --resume never or --resume DIR, a run is refused if the folder has a checkpoint of a later
# step than the step at which the run begins, because the next start would resume from that
# checkpoint.
expect 'on has a checkpoint of step 12, from which a later start would go on' \
  "$train_gpt" "${run[@]}" --checkpoint on --resume never
expect 'remove the checkpoints after step 8' "$train_gpt" "${run[@]}" --checkpoint off \
  --resume off/step-000000008
# --checkpoint-keep 1 keeps the checkpoint that was just written, not an older one that is damaged
# but has a higher step.
cp -r off broken
printf 'x' >> broken/step-000000012/manifest.json
ranks 2 "${run[@]}" --steps 10 --resume-changed steps,warmup --checkpoint broken \
  --checkpoint-keep 1
[[ $(ls broken) == $'lock\nstep-000000010' ]] || fail "kept: $(ls broken)"

# Only one run may write checkpoints to a folder.
"$train_gpt" "${long[@]}" --checkpoint locked --resume never > output.log 2>&1 < /dev/null &
job=$!
wait_for 'step 1/' output.log
expect 'another run writes its checkpoints there' "$train_gpt" "${run[@]}" --checkpoint locked
kill -TERM "$job"
wait "$job" || fail "exit code $? after SIGTERM without mpirun: $(cat output.log)"
# The same command would be refused, because the folder now has a checkpoint of a later step.
grep -q 'the same command with --resume latest goes on from locked/step-' output.log ||
  fail "$(cat output.log)"
"$train_gpt" "${long[@]}" --checkpoint locked --resume latest > output.log 2>&1 < /dev/null &
job=$!
wait_for 'going on from locked/step-' output.log
kill -TERM "$job"
wait "$job" || fail "exit code $? of the proposed command: $(cat output.log)"
grep -q 'the same command goes on from locked/step-' output.log || fail "$(cat output.log)"

# Resumes train_resnet, which has running statistics and prefetched images, and train_recommender.
# Each resumes in the middle of an epoch.
others() {
  local program=$1 name=$2
  shift 2
  must_work "$program" "$@" --checkpoint "$name-whole" --log "$name-whole.jsonl" \
    --save "$name.safetensors"
  must_work mpirun -n 2 "$program" "$@" --checkpoint "$name" --checkpoint-every 2 \
    --checkpoint-async off --log "$name.jsonl"
  rm -r "$name/step-000000006"
  must_work mpirun -n 3 "$program" "$@" --checkpoint "$name" --stage 3 --log "$name.jsonl"
  grep -q 'planned and measured are equal on all ranks (3)' stdout.log || fail "$(cat stdout.log)"
  [[ $(digest "$name.jsonl" 6) == $(digest "$name-whole.jsonl" 6) ]] || fail "other bits: $name"
  [[ $(digest "$name.jsonl" 6) =~ ^[0-9a-f]{32}$ ]] || fail "$(cat "$name.jsonl")"
  # Without a step left, the run writes only --save.
  mv "$name.safetensors" "$name-first.safetensors"
  must_work mpirun -n 2 "$program" "$@" --checkpoint "$name" --save "$name.safetensors"
  cmp "$name.safetensors" "$name-first.safetensors" || fail "other weights without a step: $name"
}
ratings=(--steps 6 --batch 60 --micro-batch 12 --factors 10 --threads 1)
others "$train_recommender" recommender "${ratings[@]}"
# The tables of this run have master weights, and state with one value per row.
others "$train_recommender" rowwise "${ratings[@]}" --table-optimizer rowwise-adagrad \
  --precision bf16
others "$train_resnet" resnet --steps 6 --batch 12 --micro-batch 4 --eval-every 3 --threads 1
