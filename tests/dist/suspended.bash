# suspended SECONDS ARGUMENT...: runs `$program suspend ARGUMENT...` on two ranks, and stops both for
# SECONDS in the middle of a collective. The job must continue afterwards.
suspended() {
  local seconds=$1 job ranks
  shift
  mpirun -n 2 "$program" suspend "$@" > "$output" 2>&1 < /dev/null &
  job=$!
  until grep -q 'in step 6' "$output"; do
    kill -0 "$job" || fail "the job of suspend $* ended before step 6"
    sleep 0.1
  done
  ranks=$(pgrep -P "$job")
  kill -STOP $ranks
  sleep "$seconds"
  kill -CONT $ranks
  wait "$job" || fail "the job of suspend $*, stopped for a while, did not go on"
  grep -qE '^all steps finished' "$output" ||
    fail "the job of suspend $*, stopped for a while, did not finish"
}
