#!/usr/bin/env bash
# ctest: PROCESSORS 1
# Tests jobs in which a rank throws, dies, stops, makes a different call, returns a code or is told
# to end in the middle of a run. The job must end with the expected code. If it fails, the error or
# the last messages of the other ranks must name the step. But if a rank returns a code, no step is
# expected. A job that has not ended after a minute counts as hanging. (A busy machine may need
# almost a minute.)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/suspended.bash"
program=$TESSERA_BIN/failing_rank
output=$(mktemp)
trap 'rm -f "$output"' EXIT
export OMP_NUM_THREADS=1

fail() { printf 'FAILED: %s\n' "$*" >&2; cat "$output" >&2; exit 1; }

# expect RANKS HOW CODE PATTERN...: runs a job that fails in the way HOW; a flag may follow in the
# same word. The job must end in time with exit code CODE, and its output must match every PATTERN.
expect() {
  local ranks=$1 how=$2 code=$3 status=0 pattern
  shift 3
  timeout 60 mpirun -n "$ranks" "$program" $how > "$output" 2>&1 < /dev/null || status=$?
  [[ $status == "$code" ]] || fail "$how on $ranks ranks ended with $status, expected $code"
  for pattern in "$@"; do
    grep -qE "$pattern" "$output" || fail "$how on $ranks ranks did not say '$pattern'"
  done
}

# alone HOW CODE PATTERN: like expect, but without mpirun and without a time limit.
alone() {
  local status=0
  "$program" "$1" > "$output" 2>&1 < /dev/null || status=$?
  [[ $status == "$2" ]] || fail "$1 without mpirun ended with $status, expected $2"
  grep -qE "$3" "$output" || fail "$1 without mpirun did not say '$3'"
}

last_words='^rank [0-9]: told to end; last finished step 5'
for ranks in 1 2 3; do
  expect "$ranks" none 0 '^all steps finished'
  expect "$ranks" input 2 '^error: the file is empty \(step 6\)$'
  [[ $(grep -c 'the file is empty' "$output") == 1 ]] || fail "the same error was printed twice"
done
expect 1 return 3
expect 1 return-all 3 '^all steps finished'
# A shell would see 256 as 0.
expect 2 return-256 1 '^all steps finished'
alone return-256 1 '^all steps finished'
for ranks in 2 3; do
  expect "$ranks" return 3 '^rank 1: ended with code 3, while other ranks are still running$'
  expect "$ranks" return-all 3 '^all steps finished'
  if grep -q 'still running' "$output"; then fail "ranks that return together were ended"; fi
  expect "$ranks" throw 1 '^rank 1, step 6: something went wrong$'
  expect "$ranks" input-one 2 "^error: this rank's file is empty \(rank 1, step 6\)$"
  expect "$ranks" kill 137 "$last_words"
  expect "$ranks" exit 1 "$last_words"
  expect "$ranks" abort 134 "$last_words"
  # The error must name the call that MPI refused, not only MPI's message.
  expect "$ranks" mpi 1 '^rank 1, step 6: MPI_Send\(.*MPI_COMM_WORLD\): .*MPI_ERR_RANK'
  # If the program has its own handler of SIGTERM, that handler decides whether the rank ends.
  expect "$ranks" handler 0 '^rank 1: told to end; last finished step 5' \
    "^the program's handler" '^all steps finished'
  expect "$ranks" ignore 0 '^all steps finished'
  if grep -q 'told to end' "$output"; then fail "an ignored signal was taken for the end"; fi
done

# If a rank stops, or makes a different call, the waiting ranks must name the rank and the call.
place='(exchange of gradients|all_gather of parameters), bucket 0 \(call [0-9]+, '
for ranks in 2 3; do
  for how in stop stall; do
    expect "$ranks" "$how" 1 \
      "^rank [02], step 6: $place.*: nothing has moved for 2 s \(--comm-timeout\): rank 1 has"
  done
  # A limit on the command line holds from the start, without a call that sets it.
  expect "$ranks" 'hang --comm-timeout=2' 1 \
    "^rank [02], step 6: $place.*: nothing has moved for 2 s \(--comm-timeout\): rank 1 has"
  # A rank that has finished waits for the others, but not for ever.
  expect "$ranks" linger 1 \
    '^rank [02], after step 10: finish has not ended in 2 s \(10 times --comm-timeout\): a rank'
  expect "$ranks" other-call 1 'step 6: ranks make different calls: ' \
    'rank [02] all_gather of parameters, bucket 0 \(call [0-9]+, ' \
    'rank 1 broadcast of statistics, bucket 9 \(call [0-9]+, 28 bytes of f32 from rank 0\)'
done

# A whole job is stopped for longer than the ranks' timeout, which is 4 s.
suspended 6

# The user ends mpirun while one rank hangs and the others wait for it.
mpirun -n 3 "$program" hang > "$output" 2>&1 < /dev/null &
job=$!
sleep 2
begin=$SECONDS
kill -TERM "$job"
status=0
wait "$job" || status=$?
((SECONDS - begin <= 60)) || fail "a hanging job took $((SECONDS - begin)) s to end"
[[ $status != 0 ]] || fail "a hanging job that was ended returned 0"
grep -qE "$last_words" "$output" || fail "a hanging job that was ended had no last words"

alone none 0 '^all steps finished'
alone throw 1 '^rank 0, step 6: something went wrong$'
alone memory 1 '^rank 0, step 6: out of host memory$'
alone input 2 '^error: the file is empty \(step 6\)$'

# If a launcher that this MPI does not know has started several processes, they are refused. Without
# the refusal, each process would be a job of its own.
unknown() {
  local status=0
  env "$1=4" "$program" none > "$output" 2>&1 < /dev/null || status=$?
  [[ $status == 2 ]] || fail "4 processes of $1 ended with $status, expected 2"
  grep -q "the launcher has started 4 processes ($1), but MPI does not connect them" "$output" ||
    fail "4 processes of $1 were not refused by name"
}
unknown PMI_SIZE
unknown SLURM_STEP_NUM_TASKS
unknown MV2_COMM_WORLD_SIZE
SLURM_STEP_NUM_TASKS=1 alone none 0 '^all steps finished'
SLURM_STEP_NUM_TASKS=1 expect 2 none 0 '^all steps finished'
# mpirun within a Slurm job works, although Slurm's variable counts mpirun's daemons, not the ranks.
SLURM_STEP_NUM_TASKS=3 expect 2 none 0 '^all steps finished'
