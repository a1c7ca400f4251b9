#!/usr/bin/env bash
# Tests that a job over NCCL does not wait forever if one of its ranks hangs. The other ranks must
# print which collective does not finish, and the job must end.
# ctest: PROCESSORS 1
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suspended.bash"
program=$TESSERA_BIN/failing_rank
output=$(mktemp)
trap 'rm -f "$output"' EXIT
export OMP_NUM_THREADS=1

fail() { printf 'FAILED: %s\n' "$*" >&2; cat "$output" >&2; exit 1; }

# run HOW [graph|host]: runs failing_rank on two ranks over NCCL, and sets `status`. HOW says how
# rank 1 fails: none, hang, absent or throw.
run() {
  status=0
  timeout 60 mpirun -n 2 "$program" "$1" nccl "${@:2}" > "$output" 2>&1 < /dev/null || status=$?
}

run none
if [[ $status == 2 ]] && grep -qE 'no usable GPU|shares its GPU' "$output"; then
  echo "skipped: two ranks have no two GPUs: $(grep -m1 '^error' "$output")"
  exit 77
fi
[[ $status == 0 ]] || fail "two ranks over NCCL ended with $status"
grep -qE '^all steps finished' "$output" || fail "two ranks over NCCL did not finish"

# Both ranks are stopped for longer than the timeout, which is 4 s.
suspended 5 nccl

# Rank 1 never connects. The ranks have at least 10 s to connect, although the timeout is 1 s.
run absent
[[ $status == 1 ]] || fail "a job whose ranks do not connect ended with $status, expected 1"
grep -qE '^rank 0: connecting ranks over NCCL has not finished in 10 s' "$output" ||
  fail "nobody said that the ranks do not connect"

# hangs WHAT [graph|host]: runs a job in which a rank hangs in step 6. The job must end, its error
# must name WHAT, and no rank may end step 6.
hangs() {
  local begin=$SECONDS
  run hang "${@:2}"
  ((SECONDS - begin <= 60)) || fail "a hanging job took $((SECONDS - begin)) s to end"
  [[ $status == 1 ]] || fail "a hanging job ended with $status, expected 1"
  grep -qE "^rank 0, step 6: $1 has not finished in 1 s" "$output" ||
    fail "nobody said which collective does not finish"
  ! grep -q 'step 6 has ended' "$output" || fail "a rank ended a step whose data had not arrived"
}
hangs 'all_gather of parameters, bucket 0'
# With `host`, rank 0 waits in all_gather_host. It gathers over MPI, so NCCL has no call in flight.
hangs 'all_gather of statistics' host
# An abort of NCCL's calls would wait until graphs with captured calls are destroyed. In a job that
# hangs, this happens only when the process ends. So such a job must end without an abort. The first
# of these jobs with a graph does not hang.
run none graph
[[ $status == 0 ]] || fail "two ranks with a graph ended with $status"
grep -qE '^all steps finished' "$output" || fail "two ranks with a graph did not finish"
hangs 'graph of a micro-step' graph
# The variable makes emulated streams deferred. As on a GPU, a deferred stream goes on after an
# aborted call, so an abort would let rank 0 end step 6. On a GPU the variable has no effect.
TESSERA_EMULATED_STREAMS=2 hangs 'graph of a micro-step' graph

run throw
[[ $status == 1 ]] || fail "a rank that throws ended the job with $status, expected 1"
grep -qE '^rank 1, step 6: something went wrong$' "$output" || fail "the error was not said"
