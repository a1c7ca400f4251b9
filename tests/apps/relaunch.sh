#!/usr/bin/env bash
# ctest: TIMEOUT 600 PROCESSORS 1
# Tests relaunch as users run it: ranks are killed, stopped, told to end, or given bad input.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
relaunch=$TESSERA_BIN/relaunch
failing_rank=$TESSERA_BIN/failing_rank

ldd "$relaunch" > libraries.log
! grep -q libmpi libraries.log || fail "relaunch links MPI"

run=(--data text.txt "${tiny[@]}" --eval-every 0 --checkpoint-every 5
  --threads 1)
digest_of() { grep -o '"digest":"[0-9a-f]*"' "$1" | tail -n 1; }
steps_in() { grep -c '"type":"step"' "$1" 2> /dev/null || true; }
# await_signals: waits until the job handles signals, because a signal that comes earlier ends
# relaunch. relaunch blocks its signals and reads them from a descriptor
# (apps/relaunch/processes.cpp). So it handles signals once bit 9 of the blocked signals, the bit of
# SIGUSR1, is set.
await_signals() {
  local blocked
  until blocked=$(awk '/^SigBlk:/ {print $2}' "/proc/$job/status") && ((0x$blocked & 0x200)); do
    kill -0 "$job" 2> /dev/null || fail "it has ended before it handles signals"
    sleep 0.01
  done
}
# await_steps LOG COUNT: waits until the log has COUNT steps.
await_steps() {
  for _ in $(seq 1200); do
    [[ $(steps_in "$1") -ge $2 ]] && return
    sleep 0.05
  done
  fail "no $2 steps in $1: $(cat output.log)"
}
# in_background COMMAND...: starts the command as process $job. Its standard error goes to
# output.log.
in_background() {
  "$@" > stdout.log 2> output.log < /dev/null &
  job=$!
}
# ends CODE: the job must end within 90 s, with this exit code.
ends() {
  local status=0
  timeout 90 tail --pid="$job" -f /dev/null || kill -KILL "$job"
  wait "$job" || status=$?
  [[ $status == "$1" ]] || fail "exit code $status instead of $1: $(cat output.log)"
}
says() { grep -qE -- "$1" output.log || fail "it does not say '$1': $(cat output.log)"; }
# rank_process LOG RANK: prints the process id of this rank of the running job with this log. Here
# grep -q must read a file, not a pipe. grep -q ends at the first match, so the writer of a pipe
# could die of SIGPIPE, and pipefail would make the match a failure.
rank_process() {
  local pid
  for pid in $(pgrep -f "^$train_gpt .*--log $work/$1"); do
    if grep -qzxE "(OMPI_COMM_WORLD_RANK|PMI_RANK)=$2" "/proc/$pid/environ"; then
      echo "$pid"
      return
    fi
  done
  fail "no process of rank $2 with $1: $(cat output.log)"
}
# resumes LOG COUNT: the run must have resumed COUNT times, rather than begun anew.
resumes() {
  [[ $(grep -c 'going on from' output.log) == "$2" ]] ||
    fail "the job did not start again $2 times: $(cat output.log)"
  grep -q '"type":"resume"' "$1" || fail "no resume in $1"
}

# This program never handles SIGUSR2, so it cannot save and end, and it ignores SIGTERM. So relaunch
# kills it after 70 s. The other tests run meanwhile, and the end of this file checks the result.
"$relaunch" -n 1 -- sh -c 'trap "" TERM; sleep 1000' > /dev/null 2> deaf.log < /dev/null &
deaf=$!
job=$deaf
await_signals
kill -TERM "$job"

# The uninterrupted reference run.
steps=600
must_work "$train_gpt" "${run[@]}" --steps $steps --checkpoint untouched --log untouched.jsonl
expected=$(digest_of untouched.jsonl)
[[ -n $expected ]] || fail "no digest in the log"

# Two ranks are killed, one after the other: the run has 4 ranks, then 3, then 2.
in_background "$relaunch" -n 4 --min-ranks 2 --restarts 3 -- \
  "$train_gpt" "${run[@]}" --steps $steps --stage 2 --checkpoint killed --log "$work/killed.jsonl"
await_steps killed.jsonl 20
kill -KILL "$(rank_process killed.jsonl 2)"
for _ in $(seq 600); do
  grep -q "starting again with 3 ranks (restart 1 of 3)" output.log && break
  sleep 0.05
done
before=$(steps_in killed.jsonl)
await_steps killed.jsonl $((before + 20))
kill -SEGV "$(rank_process killed.jsonl 1)"
ends 0
resumes killed.jsonl 2
says 'relaunch: rank 2 was killed by SIGKILL after step [0-9]+; starting again with 3 ranks'
says 'relaunch: rank 1 was killed by SIGSEGV after step [0-9]+; starting again with 2 ranks'
[[ $(digest_of killed.jsonl) == "$expected" ]] || fail "other bits after two kills"
losses killed.jsonl | diff <(losses untouched.jsonl) - > /dev/null || fail "other losses in the log"

# A rank is stopped. The other ranks wait for it as long as --comm-timeout allows, and the job
# continues without that rank.
in_background "$relaunch" -n 3 -- "$train_gpt" "${run[@]}" --steps $steps --stage 3 \
  --comm-timeout 2 --checkpoint stopped --log "$work/stopped.jsonl"
await_steps stopped.jsonl 20
kill -STOP "$(rank_process stopped.jsonl 1)"
ends 0
resumes stopped.jsonl 1
says 'relaunch: rank 1 was stopped after step [0-9]+; starting again with 2 ranks'
[[ $(digest_of stopped.jsonl) == "$expected" ]] || fail "other bits after a stopped rank"

# A rank is killed before the first checkpoint, and nothing sets the number of threads. The restart
# begins anew with fewer ranks, but with as many threads of a rank, because the bits depend on them.
threads_in() { sed -nE '1s/.*"threads":([0-9]+),.*/\1/p' "$1"; }
in_background env -u OMP_NUM_THREADS "$relaunch" -n 2 -- "$train_gpt" --data text.txt "${tiny[@]}" \
  --eval-every 0 --steps $steps --checkpoint early --log "$work/early.jsonl"
await_steps early.jsonl 20
threads=$(threads_in early.jsonl)
kill -KILL "$(rank_process early.jsonl 1)"
ends 0
says 'relaunch: rank 1 was killed by SIGKILL after step [0-9]+; starting again with 1 rank'
! grep -q 'going on from' output.log || fail "it had a checkpoint: $(cat output.log)"
[[ -n $threads && $(threads_in early.jsonl) == "$threads" ]] ||
  fail "$(threads_in early.jsonl) threads after a restart instead of $threads"

# mpirun itself dies. Its ranks end, and the job continues with the same number of ranks.
in_background "$relaunch" -n 2 -- "$train_gpt" "${run[@]}" --steps $steps --stage 1 \
  --checkpoint crashed --log "$work/crashed.jsonl"
await_steps crashed.jsonl 20
kill -SEGV "$(pgrep -P "$job")"
ends 0
resumes crashed.jsonl 1
says 'relaunch: mpirun was killed by SIGSEGV; starting again with 2 ranks'
[[ $(digest_of crashed.jsonl) == "$expected" ]] || fail "other bits after mpirun was killed"

# The command is a script that starts the program without `exec`, so the program is a child of the
# script, and not of relaunch's process. In the next three cases, all programs of the job must have
# ended before the restart locks the checkpoints. First, a program is killed with its script.
printf '#!/bin/sh\nwrapped=1; export wrapped\n"$@"\n' > wrapper.sh
chmod +x wrapper.sh
in_background "$relaunch" -n 2 -- ./wrapper.sh "$train_gpt" "${run[@]}" --steps $steps \
  --checkpoint wrapped --log "$work/wrapped.jsonl"
await_steps wrapped.jsonl 20
program=$(rank_process wrapped.jsonl 1)
kill -KILL -- "-$(ps -o pgid= -p "$program" | tr -d ' ')"
ends 0
resumes wrapped.jsonl 1
says 'relaunch: rank 1 was killed by SIGKILL after step [0-9]+; starting again with 1 rank'
[[ $(digest_of wrapped.jsonl) == "$expected" ]] || fail "other bits after a killed script"
# Only the program is killed, and the script ends with the exit code 137.
in_background "$relaunch" -n 2 -- ./wrapper.sh "$train_gpt" "${run[@]}" --steps $steps \
  --checkpoint alone --log "$work/alone.jsonl"
await_steps alone.jsonl 20
kill -KILL "$(rank_process alone.jsonl 1)"
ends 0
resumes alone.jsonl 1
says 'relaunch: rank 1 was killed by SIGKILL after step [0-9]+; starting again with 1 rank'
# Only the program is stopped.
in_background "$relaunch" -n 2 -- ./wrapper.sh "$train_gpt" "${run[@]}" --steps $steps \
  --comm-timeout 2 --checkpoint halted --log "$work/halted.jsonl"
await_steps halted.jsonl 20
program=$(rank_process halted.jsonl 0)
kill -STOP "$program"
ends 0
resumes halted.jsonl 1
says 'relaunch: rank 0 .* after step [0-9]+; starting again with 1 rank'
[[ $(digest_of halted.jsonl) == "$expected" ]] || fail "other bits after a stopped program"
! kill -0 "$program" 2> /dev/null || fail "the stopped program of a script was left behind"

# A rank is stopped before MPI starts.
cat > stops.sh << 'END'
#!/bin/sh
# Rank 2 stops itself. After the restart there are only ranks 0 and 1.
if [ "$OMPI_COMM_WORLD_RANK$PMI_RANK" = 2 ]; then kill -STOP $$; fi
exec "$@"
END
chmod +x stops.sh
in_background "$relaunch" -n 3 -- ./stops.sh "$train_gpt" "${run[@]}" --steps $steps \
  --comm-timeout 3 --checkpoint start --log "$work/start.jsonl"
ends 0
says 'MPI has not started within 10 s \(--comm-timeout, but at least 10 s\)'
says 'relaunch: rank 2 was stopped before it finished a step; starting again with 2 ranks'
[[ $(digest_of start.jsonl) == "$expected" ]] || fail "other bits after a rank stopped at the start"

# A rank is stopped while a checkpoint is written.
in_background "$relaunch" -n 3 -- "$train_gpt" "${run[@]}" --steps $steps --stage 1 \
  --comm-timeout 2 --checkpoint saving --checkpoint-every 1 --log "$work/saving.jsonl"
await_steps saving.jsonl 10
for _ in $(seq 10000); do
  ls -d saving/*.partial > /dev/null 2>&1 && break
  kill -0 "$job" 2> /dev/null || fail "it has ended before it was seen to save: $(cat output.log)"
done
kill -STOP "$(rank_process saving.jsonl 1)"
ends 0
resumes saving.jsonl 1
says 'relaunch: rank 1 was stopped after step [0-9]+; starting again with 2 ranks'
[[ $(digest_of saving.jsonl) == "$expected" ]] || fail "other bits after a rank stopped in a save"

# SIGUSR1 makes the job save. SIGTERM makes the job save and end, and the same command then resumes.
# A signal soon after the start must neither be lost nor kill a process.
in_background "$relaunch" -n 2 -- "$train_gpt" "${run[@]}" --steps $steps --checkpoint told \
  --checkpoint-every 0 --log "$work/told.jsonl"
await_signals
kill -USR1 "$job"
for _ in $(seq 600); do
  ls -d told/step-*[0-9] > /dev/null 2>&1 && break
  sleep 0.05
done
ls -d told/step-*[0-9] > /dev/null || fail "SIGUSR1 saved nothing: $(cat output.log)"
kill -TERM "$job"
ends 0
says 'stopped after step [0-9]+ of'
[[ $(steps_in told.jsonl) -lt $steps ]] || fail "it was not told in time"
must_work "$relaunch" -n 2 -- "$train_gpt" "${run[@]}" --steps $steps --checkpoint told \
  --log "$work/told.jsonl"
[[ $(digest_of told.jsonl) == "$expected" ]] || fail "other bits after SIGTERM"

# relaunch does not restart the job in three cases: the failure would happen again, too few ranks
# are left, or --restarts allows no restart.
ended() {
  local code=$1 pattern=$2 status=0
  shift 2
  "$relaunch" "$@" > stdout.log 2> output.log < /dev/null || status=$?
  [[ $status == "$code" ]] || fail "exit code $status instead of $code: $*: $(cat output.log)"
  says "$pattern"
  ! grep -q "starting again" output.log || fail "it was started again: $(cat output.log)"
}
ended 2 'relaunch: rank [01] has bad input; a restart would fail in the same way' \
  -n 2 -- "$train_gpt" --data nosuch.txt --checkpoint x
ended 1 'relaunch: rank [01] has ended with an error; a restart would fail in the same way' \
  -n 2 -- "$train_gpt" "${run[@]}" --steps 20 --lr 1e38 --warmup 0 --clip 0 --checkpoint y
ended 3 'relaunch: rank [01] ended with exit code 3; a restart would fail in the same way' \
  -n 2 -- sh -c 'exit 3'
ended 137 'was killed by SIGKILL before it finished a step; 1 rank is left, expected at least 2' \
  -n 2 --min-ranks 2 -- sh -c 'kill -KILL $$'
ended 137 'it was started again 0 times' -n 2 --restarts 0 -- sh -c 'kill -KILL $$'
# Rank 1 is killed by the same signal after step 5 of the first job and of the restarted job.
# relaunch must not restart the job a second time.
status=0
"$relaunch" -n 3 -- "$failing_rank" segv > stdout.log 2> output.log < /dev/null || status=$?
[[ $status != 0 ]] || fail "a rank that always dies ended with 0"
says 'relaunch: the command has no --checkpoint'
says 'rank 1 was killed by SIGSEGV after step 5; starting again with 2 ranks'
says 'rank 1 was killed by SIGSEGV after step 5; the same failure came before, at the same step'

# relaunch works when its parent ignores SIGCHLD, and when the reader of its output exits.
status=0
sh -c "trap '' CHLD; exec $relaunch -n 1 -- sh -c 'exit 3'" > stdout.log 2> output.log || status=$?
[[ $status == 3 ]] || fail "exit code $status instead of 3 where SIGCHLD is ignored"
talker='echo words >&2; sleep 1; echo words >&2; touch done'
{ "$relaunch" -n 1 -- sh -c "$talker" 2>&1 || true; } | head -n 1 > /dev/null
[[ -e done ]] || fail "relaunch ended with the reader of its output"
# SIGTERM arrives before any rank has started.
printf '#!/bin/sh\nexec sleep 1000\n' > silent.sh
chmod +x silent.sh
in_background "$relaunch" -n 2 --mpirun ./silent.sh -- "$train_gpt" --checkpoint x
await_signals
kill -TERM "$job"
ends 143

expect 'would go back to this start, expected latest' \
  "$relaunch" -n 2 -- "$train_gpt" --resume x/step-000000001
expect 'nosuch: cannot be started' "$relaunch" -n 2 --mpirun nosuch -- "$train_gpt" --checkpoint x
expect "'mpirun': write -- before the program to run: relaunch -n 4 -- train_gpt" \
  "$relaunch" mpirun -n 2 "$train_gpt" --checkpoint x
expect 'the program to run is missing' "$relaunch" -n 2
ended 2 'nosuch: cannot be started' -n 2 -- nosuch --checkpoint x
# A rank that is followed by other text is not read as a rank.
OMPI_COMM_WORLD_RANK=1x PMIX_RANK= PMI_RANK= SLURM_PROCID= \
  ended 1 'the launcher does not say which rank this process is' --as-rank true

job=$deaf
ends 137
mv deaf.log output.log
says 'relaunch: rank 0 has not handled SIGUSR2 in 60 s and gets SIGTERM'
says 'relaunch: rank 0 has not handled SIGUSR2 in 70 s and gets SIGKILL'
says 'relaunch: rank 0 was killed by SIGKILL before it finished a step; the run was told to end'
