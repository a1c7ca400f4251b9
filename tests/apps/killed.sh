#!/usr/bin/env bash
# A rank of train_gpt is killed in the middle of training: the job ends soon, with a non-zero exit
# code, and the survivors say which step they finished last. This also holds with --checkpoint,
# where the program has its own handler of SIGTERM.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
for extra in "" "--checkpoint saved"; do
  rm -f run.jsonl
  # $extra is not in quotes, because it is empty, or a flag and its value.
  mpirun -n 3 "$train_gpt" --data text.txt "${tiny[@]}" --steps 1000000 --eval-every 0 \
    --log run.jsonl $extra > output.log 2>&1 < /dev/null &
  job=$!
  for _ in $(seq 600); do
    [[ $(grep -c '"type":"step"' run.jsonl 2> /dev/null) -ge 3 ]] && break
    sleep 0.1
  done
  victim=$(pgrep -n -f "^$train_gpt .*--log run.jsonl" || true)
  [[ -n $victim ]] || fail "no rank is running: $(cat output.log)"
  begin=$SECONDS
  kill -KILL "$victim"
  status=0
  wait "$job" || status=$?
  ((SECONDS - begin <= 60)) || fail "the job took $((SECONDS - begin)) s to end ($extra)"
  [[ $status != 0 ]] || fail "the job returned 0 ($extra)"
  grep -qE '^rank [0-2]: told to end; last finished step [0-9]+' output.log ||
    fail "no last words ($extra): $(cat output.log)"
done
