#!/usr/bin/env bash
# Tests zero_plan without mpirun: tables, and JSON to a file and to standard output. The memory that
# it plans must equal that in train_gpt's plan. It must plan for a million ranks, add the cost of
# saves if asked, and refuse bad input in one line with exit code 2.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
zero_plan=$TESSERA_BIN/zero_plan

must_work "$zero_plan" --preset nano --ranks 2 --stage 2 --json plan.json
grep -q '^    2  ' stdout.log || fail "no row for stage 2: $(cat stdout.log)"
must_work "$zero_plan" --preset nano --ranks 2 --stage 2 --json -
cmp -s stdout.log plan.json || fail "JSON on standard output is not that of the file"
must_work "$zero_plan" --help
grep -q -- '--ranks-per-node' stdout.log || fail "no help"

# On a CPU, --offload changes nothing, and a message says so.
must_work "$zero_plan" --preset nano --ranks 2 --stage 2 --offload optimizer --json -
cmp stdout.log plan.json || fail "a plan of an offload that no run does"
grep -q "^offload: a CPU's optimizer state is on the host anyway$" stderr.log ||
  fail "offload is not explained: $(cat stderr.log)"

# The row of two ranks at stage 2 must equal that row in train_gpt's plan.
alone --plan
python3 - << 'PYTHON'
import json
memory = json.load(open("plan.json"))["stages"][0]["memory"]
rows = [line.replace(",", "").split() for line in open("stdout.log")]
row = next(row for row in rows if row[:2] == ["2", "2"])
columns = ("parameters", "gathered_therein", "gradients", "optimizer_state", "communication",
           "activations", "workspace", "total")
assert row[2:10] == [str(memory[name]) for name in columns], (row, memory)
PYTHON
! grep -q '^offload' stderr.log || fail "offload without the flag: $(cat stderr.log)"
ranks 2 --plan
mv stdout.log plan.txt
ranks 2 --plan --offload optimizer
cmp stdout.log plan.txt || fail "train_gpt --plan has an offload that no run does"
[[ $(grep -c "^offload: a CPU's optimizer state is on the host anyway$" stderr.log) == 1 ]] ||
  fail "offload is not explained once: $(cat stderr.log)"

# An evaluation of this model needs more workspace than a step. zero_plan must plan the workspace
# that a run reaches, by default with evaluations.
small=(--layers 2 --heads 2 --width 32 --context 16 --vocab 1024 --batch 4 --micro-batch 2
  --threads 1 --stage 2)
for name in usual no_evaluations; do
  flags=()
  [[ $name == usual ]] || flags=(--eval-every 0)
  must_work "$zero_plan" "${small[@]}" "${flags[@]}" --json $name.json
  alone --data text.txt "${small[@]}" --steps 2 "${flags[@]}"
  mv stdout.log $name.txt
done
python3 - << 'PYTHON'
import json
planned = []
for name in ("usual", "no_evaluations"):
    workspace = json.load(open(name + ".json"))["stages"][0]["memory"]["workspace"]
    rows = [line.replace(",", "").split() for line in open(name + ".txt")]
    row = next(row for row in rows if row[:1] == ["workspace"])
    assert row[1:] == [str(workspace), str(workspace), "yes"], (name, row, workspace)
    planned.append(workspace)
assert planned[0] > planned[1], planned
PYTHON

must_work "$zero_plan" --preset gpt2-xl --ranks 1000000 --ranks-per-node 8 --precision bf16 \
  --micro-batch 1 --global-batch 1000000 --memory 80GB --flops 150T --bandwidth 12GB \
  --node-bandwidth 200GB --latency 5us --staging 100MB
grep -q '1,000,000' stdout.log || fail "no million ranks"

# --saves adds the memory and the traffic of a save of weights during a run.
must_work "$zero_plan" --ranks 2
! grep -q 'a save besides' stdout.log || fail "a save, and nobody asked"
must_work "$zero_plan" --ranks 2 --saves
grep -q 'a save besides' stdout.log || fail "$(cat stdout.log)"
must_work "$zero_plan" --ranks 2 --stage 2 --saves --json saves.json
must_work "$zero_plan" --ranks 2 --stage 2 --json plain.json
python3 - << 'PYTHON'
import json
saves, plain = (json.load(open(name))["stages"][0] for name in ("saves.json", "plain.json"))
assert saves["save_traffic"] > 4 * 400_000 and "save_traffic" not in plain, saves
assert saves["parts"]["saved"] > 0 == plain["parts"]["saved"], saves["parts"]
assert saves["memory"]["communication"] > plain["memory"]["communication"], saves["memory"]
assert saves["traffic"] == plain["traffic"]
PYTHON

# --table plans the memory and the traffic of a row-sparse and of a dense table.
must_work "$zero_plan" --table 1000000x64 --lookups 4096 --ranks 8 --stage 2 --precision bf16
grep -q '^a table of 1,000,000 rows of 64 bf16 values, adamw, 8 ranks' stdout.log ||
  fail "$(cat stdout.log)"
[[ $(grep -c '^    2      8 ' stdout.log) == 4 ]] || fail "not four rows: $(cat stdout.log)"

# expect PATTERN ARGUMENT...: bad input must be refused in one line that matches PATTERN, with exit
# code 2.
expect() {
  local pattern=$1 status=0
  shift
  "$zero_plan" "$@" > stdout.log 2> stderr.log < /dev/null || status=$?
  [[ $status == 2 ]] || fail "exit code $status instead of 2: $*"$'\n'"$(cat stderr.log)"
  grep -q -- "$pattern" stderr.log || fail "no '$pattern' from: $*"$'\n'"$(cat stderr.log)"
  [[ $(wc -l < stderr.log) == 1 && ! -s stdout.log ]] || fail "more than one line from: $*"
}
expect 'unknown flag --foo' --foo
expect '--ranks is 0' --ranks 0
expect '--ranks is 2000000, expected at most 1000000' --ranks 2000000
expect "--memory is '80XB', expected a quantity such as 80GB" --memory 80XB
expect 'needs --bandwidth too' --flops 1T --ranks 2
expect '--width 18 is not divisible by the default heads (4)' --width 18
expect "--staging is '-1', expected at least 0" --staging -1
expect '--shared-cores is for the time of a step' --shared-cores
expect 'beyond 2^63' --layers 16384 --width 1048576 --heads 1 --ranks 1000000 --micro-batch 1 \
  --global-batch 1073741824
expect 'no/plan.json: cannot be written' --json no/plan.json
expect '--lookups and --zipf are for --table' --zipf 1
table=(--table 1000x64 --lookups 4)
expect '--preset is for a GPT, not for --table' "${table[@]}" --preset nano
expect '--width is for a GPT, not for --table' "${table[@]}" --width 64
expect '--loss-rows is for a GPT, not for --table' "${table[@]}" --loss-rows 64
expect '--flops is for a GPT, not for --table' "${table[@]}" --flops 1T
expect '--eval-every is for a GPT, not for --table' "${table[@]}" --eval-every 0
expect '--heads is for a GPT, not for --table' "${table[@]}" --heads 5
expect '--json is for a GPT, not for --table' "${table[@]}" --json plan.json
mkdir -p run/step-000000001
touch run/step-000000001/manifest.json
expect '--json run/step-000000001/manifest.json is in the checkpoint' \
  --json run/step-000000001/manifest.json
[[ -z $(find . -name '*.tmp*') ]] || fail "files were left behind"
printf '{"type":"header","program":"train_gpt"}\n' > run.jsonl
expect 'run.jsonl is the log of a run, and would be overwritten' --preset nano --json run.jsonl
