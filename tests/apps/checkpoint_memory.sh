#!/usr/bin/env bash
# ctest: TIMEOUT 300 PROCESSORS 2
# The memory of a run does not grow with the number of checkpoints: 50 more checkpoints, each of 1.1
# MB per rank, raise the resident memory of all ranks together by at most 8 MiB.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
model=(--layers 2 --heads 2 --width 80 --context 16 --global-batch 4 --micro-batch 2)
mpirun -n 2 "$train_gpt" --data text.txt "${model[@]}" --steps 1000000 --eval-every 0 \
  --checkpoint run --checkpoint-every 4 --checkpoint-keep 2 --checkpoint-async on \
  --log "$work/run.jsonl" > output.log 2>&1 < /dev/null &
job=$!
written() { grep -c '"type":"checkpoint".*"digest"' run.jsonl 2> /dev/null || true; }
await() {
  for _ in $(seq 2400); do
    [[ $(written) -ge $1 ]] && return
    kill -0 $job 2> /dev/null || fail "the run has ended: $(cat output.log)"
    sleep 0.05
  done
  fail "only $(written) checkpoints: $(cat output.log)"
}
# resident: prints the resident memory of all ranks together, in KiB.
resident() {
  local all=0 pid pages
  for pid in $(pgrep -f "^$train_gpt .*--log $work/run.jsonl"); do
    read -r _ pages _ < "/proc/$pid/statm"
    ((all += pages * 4))
  done
  echo $all
}
await 15
before=$(resident)
await 65
after=$(resident)
kill -TERM "$(pgrep -of "^$train_gpt .*--log $work/run.jsonl")"
wait $job || fail "exit code $?: $(cat output.log)"
echo "two ranks: $before KiB after 15 checkpoints, $after KiB after 65"
((before > 20000)) || fail "no ranks were found"
# A checkpoint copies 1.1 MB of state on each rank. If no copy were freed, the 50 checkpoints of two
# ranks would take 107 MB.
((after - before <= 8192)) || fail "$((after - before)) KiB more after 50 checkpoints"
