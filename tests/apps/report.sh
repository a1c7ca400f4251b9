#!/usr/bin/env bash
# Tests the output that people read: the page of --report and of `report`, CSV, --quiet, --eval-only
# and perplexity. The numbers must equal those of the log. Also tests input that is refused.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
report=$TESSERA_BIN/report

run=(--data text.txt "${tiny[@]}" --steps 40 --eval-every 20 --stage 3)
ranks 3 "${run[@]}" --report run.html --csv run.csv --norms-every 10
grep -q 'planned and measured are equal on all ranks (3)' stdout.log || fail "$(cat stdout.log)"
alone "${run[@]}" --log plain.jsonl
alone "${run[@]}" --steps 1 --micro-batch 12 --stage 0 --log one.jsonl
losses run.jsonl | diff - <(losses plain.jsonl) || fail "a report changed the losses"
mv run.html by_run.html
must_work "$report" run.jsonl
cmp run.html by_run.html
must_work "$report" run.jsonl plain.jsonl --names first,second --out both.html
must_work "$report" run.jsonl --csv again.csv
cmp run.csv again.csv

cat > check.py << 'PYTHON'
import csv, json, re
lines = [json.loads(line) for line in open("run.jsonl")]
of = lambda kind: [line for line in lines if line["type"] == kind]
def runs(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', open(path).read(), re.S)[1])["runs"]
run, = runs("run.html")
for name in ("loss", "grad_norm", "lr", "step_ms"):
    assert run["steps"]["series"][name] == [[l["step"], l[name]] for l in of("step")], name
for name in ("val_loss", "perplexity", "bits_per_byte"):
    assert run["evals"][name] == [[l["step"], l[name]] for l in of("eval")], name
assert run["norms"]["steps"] == [10, 20, 30, 40]
assert run["summary"]["ranks"] == of("summary")[0]["ranks"]
# The layout's buckets hold as many elements as the model has parameters. The optimizer state that
# the layout gives to a rank has as many bytes as the rank measured.
layout = run["layout"]
elements = sum(n for group in layout["groups"] for bucket in group["buckets"]
               for _, _, n in bucket["parameters"])
assert elements == run["header"]["model"]["parameters"], elements
held = sum(group["state_bytes"] * bucket["shard"]
           for group in layout["groups"] for bucket in group["buckets"])
state = of("summary")[0]["ranks"][0]["memory"]["optimizer_state"]["peak"]
assert held == state, (held, state)
# With several ranks, gradients have memory beside their sums. A single rank writes the gradients of
# a step's first micro-batch into their sums. With one micro-batch a step, the sums are then all the
# memory that gradients have.
assert not any(group["gradients_in_sums"] for group in layout["groups"])
one = [json.loads(line) for line in open("one.jsonl")]
groups = one[0]["layout"]["groups"]
assert all(group["gradients_in_sums"] for group in groups)
sums = sum(group["sum_bytes"] * bucket["shard"] for group in groups for bucket in group["buckets"])
summary, = [line for line in one if line["type"] == "summary"]
assert sums == summary["ranks"][0]["memory"]["gradients"]["peak"], sums
timeline = run["timeline"]
assert timeline["step"] == 3 and [r["rank"] for r in timeline["ranks"]] == [0, 1, 2]
for rank in timeline["ranks"]:
    (begin, end), = [(b, b + d) for track, name, b, d, _ in rank["events"] if name == "step 3"]
    passes = [(b, name) for track, name, b, d, _ in rank["events"]
              if track == 0 and name in ("forward", "backward") and b < end]
    # 6 micro-batches on 3 ranks: each rank runs two.
    assert [name for _, name in sorted(passes)] == ["forward", "backward"] * 2, passes
    assert all(begin <= at <= end for at, _ in passes)
    assert any(track == 2 for track, *_ in rank["events"])
rows = list(csv.DictReader(open("run.csv")))
assert [float(r["loss"]) for r in rows] == [l["loss"] for l in of("step")]
assert [float(r["val_loss"]) for r in rows if r["val_loss"]] == [l["val_loss"] for l in of("eval")]
assert [r["name"] for r in runs("both.html")] == ["first", "second"]
last = of("eval")[-1]
import math
assert abs(last["perplexity"] - math.exp(last["val_loss"])) < 1e-4 * last["perplexity"]
assert abs(last["bits_per_byte"] - last["val_loss"] / math.log(2)) < 1e-5
PYTHON
python3 check.py

# The events that are made from a log have the times of the run's steps, not that of the conversion.
must_work "$report" run.jsonl --tensorboard timed
cat > times.py << 'PYTHON'
import glob, json, os, struct
data = open(glob.glob("timed/*")[0], "rb").read()
times, at = [], 0
while at < len(data):
    length, = struct.unpack_from("<Q", data, at)
    times.append(struct.unpack_from("<d", data, at + 13)[0])
    at += 16 + length
steps = [json.loads(line) for line in open("run.jsonl") if line.startswith('{"type":"step"')]
seconds = sum(step["step_ms"] for step in steps) / 1000
assert times == sorted(times) and len(set(times)) == 1 + len(steps), times
assert abs(times[-1] - times[0] - seconds) < 1e-3, (times[0], times[-1], seconds)
assert abs(times[-1] - os.path.getmtime("run.jsonl")) < 1.1
PYTHON
python3 times.py

# A killed run may leave a log that ends within a line. `report` makes a page of the complete lines.
head -n 20 run.jsonl > cut.jsonl
printf '{"type":"step","st' >> cut.jsonl
must_work "$report" cut.jsonl
grep -q '"count":1[0-9]' cut.html || fail "no steps of a log that is cut short"

# A run ends after 12 steps and is resumed on more ranks. The page of the resumed run has all steps.
stopped=(--data text.txt "${tiny[@]}" --steps 30 --warmup 1 --eval-every 0 --checkpoint saved)
ranks 2 "${stopped[@]}" --report going.html --steps 12 --resume-changed steps
ranks 3 "${stopped[@]}" --report going.html --resume-changed steps
python3 - << 'PYTHON'
import json, re
data = json.loads(re.search(r'id="data">(.*?)</script>', open("going.html").read(), re.S)[1])
run, = data["runs"]
assert [x for x, _ in run["steps"]["series"]["loss"]] == list(range(1, 31))
assert run["resumes"] == [12] and run["header"]["ranks"] == 3 and run["checkpoints"] == [12, 30]
PYTHON

# The log of a run that is still running, a damaged log, and the log of another run are not changed.
exec 8>> going.jsonl
flock 8
expect 'going.jsonl: another run that still goes on' "$train_gpt" "${run[@]}" --log going.jsonl
exec 8>&-
python3 - << 'PYTHON'
import re
lines = open("going.jsonl").read().splitlines()
lines[5] = lines[5][:20]
open("damaged.jsonl", "w").write("\n".join(lines) + "\n")
open("gap.jsonl", "w").write("\n".join(lines[:5]) + "\n")
open("model.jsonl", "w").write("\n".join(lines).replace('"layers":2', '"layers":3') + "\n")
text = open("going.jsonl").read()
open("seed.jsonl", "w").write(re.sub(r'"seed":\d+', '"seed":99', text))
open("other.jsonl", "w").write(text.replace('"program":"train_gpt"', '"program":"other"'))
open("hello.jsonl", "w").write("hello\n")
open("digest.jsonl", "w").write(re.sub(r'"digest":"\w+"', '"digest":"0123"', text))
PYTHON
again=("$train_gpt" "${stopped[@]}" --checkpoint elsewhere --resume saved/step-000000012 --quiet
  --resume-changed steps)
for case in "damaged.jsonl: line 6 is damaged" "model.jsonl is the log of another run" \
  "other.jsonl is the log of other, expected one of train_gpt" \
  "hello.jsonl is not the log of a run" \
  "seed.jsonl is the log of another run: seed is 99 there, and [0-9]* in the checkpoint" \
  "digest.jsonl is the log of another run: the checkpoint of step 12 has the digest 0123 there"; do
  log=${case%%[ :]*}
  cp "$log" before
  if "${again[@]}" --log "$log" 2> stderr.log; then fail "$log was taken"; fi
  grep -q "$case" stderr.log || fail "$(cat stderr.log)"
  cmp "$log" before
done
must_work "${again[@]}" --log gap.jsonl
grep -q 'goes on after step 12: the log has a gap' stderr.log || fail "$(cat stderr.log)"
# A resumed run may have another seed or dropout than its checkpoint. It can then be started again
# from this checkpoint, or from its own, with the same log. Here each of two logs is used by two
# starts: changed.jsonl is a copy of the earlier run's log, and begun.jsonl is created by its first
# start.
for change in 'seed --seed 7' 'model.dropout --dropout 0.1'; do
  read -r name flag value <<< "$change"
  changed=("$train_gpt" "${stopped[@]}" --checkpoint elsewhere --quiet "$flag" "$value"
    --resume-changed "steps,$name")
  cp going.jsonl changed.jsonl
  rm -f begun.jsonl
  for log in changed.jsonl changed.jsonl begun.jsonl begun.jsonl; do
    rm -r elsewhere
    must_work "${changed[@]}" --resume saved/step-000000012 --log $log
  done
  must_work "${changed[@]}" --steps 32 --log changed.jsonl
done

# --eval-only prints the validation loss of the weights, and writes no file. The loss must be that
# of the last step of the run that saved the weights. plain.jsonl is the log of an equal run.
alone "${run[@]}" --save model.safetensors --quiet
[[ ! -s stdout.log && ! -s stderr.log ]] || fail "--quiet printed: $(cat stdout.log stderr.log)"
expected=$(sed -nE 's/.*"step":40,"val_loss":([0-9.]+).*/\1/p' plain.jsonl)
before=$(ls -l --time-style=full-iso)
must_work mpirun -n 4 "$train_gpt" "${run[@]}" --init model.safetensors --eval-only --quiet
! grep -q 'ranks will idle' stderr.log || fail "an evaluation takes no step: $(cat stderr.log)"
[[ $(cat stdout.log) == "step 0  validation loss $(printf %.4f "$expected")  perplexity "* ]] ||
  fail "--eval-only: $(cat stdout.log), expected $expected"
rm -f stdout.log stderr.log
[[ $(ls -l --time-style=full-iso | grep -v 'std.*log') == $(grep -v 'std.*log' <<< "$before") ]] ||
  fail "--eval-only wrote a file"
# --eval-only does not read training data, so --data may be shorter than a sequence.
printf short > short.txt
alone "${run[@]}" --data short.txt --val-data text.txt --init model.safetensors --eval-only
grep -q '^step 0  validation loss' stdout.log || fail "$(cat stdout.log)"
expect 'short.txt: the validation part has 1 tokens' "$train_gpt" --data short.txt \
  --init model.safetensors --eval-only
rm short.txt
# --eval-only evaluates a checkpoint, even if flags of training differ from those of its run, and
# even if another run has locked the folder.
before=$(ls saved)
exec 9> saved/lock
flock 9
must_work "$train_gpt" "${stopped[@]}" --steps 7 --lr 1 --dropout 0.5 --eval-every 10 --eval-only
grep -q '^step 30  validation loss' stdout.log || fail "$(cat stdout.log)"
must_work "$train_gpt" "${stopped[@]}" --eval-every 10 --eval-only --resume saved/step-000000012
grep -q '^step 12  validation loss' stdout.log || fail "$(cat stdout.log)"
[[ $(ls saved) == "$before" && ! -e empty ]] || fail "--eval-only wrote to the folder: $(ls saved)"
exec 9>&-

# If events cannot all be written, as on a full disk, `report` fails and leaves no incomplete file.
status=0
(ulimit -f 2; exec "$report" run.jsonl --tensorboard events 2>&1) > stdout.log || status=$?
[[ $status == 1 ]] || fail "exit code $status instead of 1: $(cat stdout.log)"
grep -q 'events/events.out.*: the events could not all be written$' stdout.log ||
  fail "$(cat stdout.log)"
[[ -z $(ls events) ]] || fail "an incomplete file of events: $(ls events)"

# The epsilon of the norms comes from the config.json of --init. No flag sets it and no tensor has
# it, so --eval-only reads it from the checkpoint. A resume without this --init is refused, even
# with --resume-changed.
mkdir epsilon
cp model.safetensors epsilon
sed 's/"layer_norm_epsilon": [^,]*/"layer_norm_epsilon": 0.01/' config.json > epsilon/config.json
smooth=("${run[@]}" --steps 2 --eval-every 2 --checkpoint smooth)
alone "${smooth[@]}" --init epsilon --log epsilon.jsonl
expected=$(sed -nE 's/.*"step":2,"val_loss":([0-9.]+).*/\1/p' epsilon.jsonl)
alone "${smooth[@]}" --eval-only --quiet
[[ $(cat stdout.log) == "step 2  validation loss $(printf %.4f "$expected")  "* ]] ||
  fail "--eval-only with an epsilon: $(cat stdout.log), expected $expected"
expect 'not set but 0.01 in the checkpoint; .*: model.epsilon comes from the config.json of' \
  "$train_gpt" "${smooth[@]}" --resume-changed model.epsilon

# Bad input is refused.
expect 'a log is required' "$report"
expect 'none.jsonl: No such file' "$report" none.jsonl
expect 'text.txt: not the log of a run' "$report" text.txt
expect 'a.jsonl: File name too long$' "$report" "$(printf 'a%.0s' {1..300}).jsonl"
head -n 1 run.jsonl > begun.jsonl
expect 'begun.jsonl: the run has logged no step yet' "$report" begun.jsonl
expect 'begun.jsonl: the run has logged no step yet' "$report" begun.jsonl --csv begun.csv
expect 'begun.jsonl: the run has logged no step yet' "$report" begun.jsonl --tensorboard begun
[[ ! -e begun.csv && ! -e begun ]] || fail "a table or events without a step"
# Logs with wrong steps are refused in every form. No part of a form is left.
cat run.jsonl run.jsonl > twice.jsonl
sed 's/"type":"step","step":2,/"type":"step","step":18446744073709551615,/' run.jsonl > huge.jsonl
sed 's/"type":"step","step":2,/"type":"step","step":"x",/' run.jsonl > text.jsonl
expect 'text.jsonl: line .* is not a line of a log: ' "$report" text.jsonl --tensorboard torn
[[ -z $(find torn -type f) ]] || fail "a part of the events is left"
for form in "--out wrong.html" "--csv wrong.csv" "--tensorboard wrong"; do
  expect 'twice.jsonl: step 1 follows step .*, expected a later step' "$report" twice.jsonl $form
  expect 'huge.jsonl: line .*step is 18446744073709551615, which is too large' "$report" \
    huge.jsonl $form
done
[[ -z $(find . -name 'wrong*') ]] || fail "left behind: $(find . -name 'wrong*')"
expect 'names has 1 name for 2 logs' "$report" run.jsonl plain.jsonl --names one
expect 'names is for a page' "$report" run.jsonl --csv new.csv --names one
expect 'is for one run, but 2 logs' "$report" run.jsonl plain.jsonl --csv x.csv
expect 'would be overwritten' "$report" run.jsonl --out run.jsonl
expect 'would be overwritten' "$report" run.jsonl --csv ./run.jsonl
# The log of another run is not overwritten by a page, a table or weights.
expect '--out plain.jsonl is the log of a run, and would be' "$report" run.jsonl --out plain.jsonl
expect '--csv plain.jsonl is the log of a run, and would be' "$report" run.jsonl --csv plain.jsonl
for flag in report csv save; do
  expect "--$flag plain.jsonl is the log of a run, and would be overwritten" "$train_gpt" \
    "${run[@]}" --log x.jsonl "--$flag" plain.jsonl
done
expect 'no/x.html: cannot be written' "$report" run.jsonl --out no/x.html
expect 'made from the log' "$train_gpt" "${run[@]}" --report x.html --log /dev/null
expect 'no/x.html: cannot be written' "$train_gpt" "${run[@]}" --report no/x.html --log x.jsonl
expect 'would write the same file' "$train_gpt" "${run[@]}" --report x.jsonl
expect 'nothing would show the norms' "$train_gpt" "${run[@]}" --norms-every 5
expect 'name the page of 2 runs' "$report" run.jsonl plain.jsonl
expect '--csv -: nothing is written to standard output' "$report" run.jsonl --csv -
echo precious > kept.jsonl
echo precious > plain.html
expect 'kept.jsonl, which already exists' "$train_gpt" "${run[@]}" --report kept.html
expect 'kept.jsonl, which already exists' "$train_gpt" "${run[@]}" --csv kept.csv
# In the header of the log, bytes of a name that are not UTF-8 are replaced. The second run must
# still accept the log as its own.
for _ in first second; do alone "${run[@]}" --steps 2 --report $'caf\xe9.html'; done
if "$train_gpt" "${stopped[@]}" --csv going.csv --steps 31 --resume-changed steps \
  2> stderr.log; then
  fail "the log of another report went on"
fi
grep -q 'going.jsonl, which already exists' stderr.log || fail "$(cat stderr.log)"
expect 'plain.html already exists and is not a report' "$report" plain.jsonl
[[ $(cat kept.jsonl plain.html) == $'precious\nprecious' ]] || fail "a file was replaced"
expect 'norms-every is -1' "$train_gpt" "${run[@]}" --norms-every -1
expect 'give the weights to evaluate' "$train_gpt" "${run[@]}" --eval-only
expect 'empty has no checkpoint' "$train_gpt" "${run[@]}" --checkpoint empty --eval-only
expect 'writes no file; leave out --log' "$train_gpt" "${run[@]}" --init model.safetensors \
  --eval-only --log x.jsonl
expect 'writes no file; leave out --report' "$train_gpt" "${run[@]}" --init model.safetensors \
  --eval-only --report x.html
expect 'takes no step; leave out --norms-every' "$train_gpt" "${run[@]}" --init model.safetensors \
  --eval-only --norms-every 5
expect 'writes no file; leave out --checkpoint-every, --checkpoint-async' "$train_gpt" \
  "${stopped[@]}" --eval-every 10 --eval-only --checkpoint-every 3 --checkpoint-async off
# Weights that are not numbers are an error.
nan='b"\0\0\xc0\x7f"'
edit_safetensors model.safetensors nan.safetensors \
  "last = list(tensors.values())[-1]; last[2] = last[2][:-4] + $nan"
status=0
"$train_gpt" "${run[@]}" --init nan.safetensors --eval-only --quiet > stdout.log 2> stderr.log ||
  status=$?
[[ $status == 1 ]] || fail "exit code $status of an evaluation that gives NaN: $(cat stderr.log)"
grep -q 'the evaluation after step 0 is not finite' stderr.log || fail "$(cat stderr.log)"
status=0
"$generate" nan.safetensors > stdout.log 2> stderr.log || status=$?
[[ $status == 1 ]] || fail "exit code $status of a model that gives NaN: $(cat stderr.log)"
grep -q "nan.safetensors: the model's logits are not numbers, because .* is not finite$" \
  stderr.log || fail "$(cat stderr.log)"
# If the last evaluation of a run is not finite, the run writes its files, and the exit code is 1.
mkdir lost
status=0
mpirun -n 2 "$train_gpt" --data text.txt "${tiny[@]}" --steps 1 --lr 1e30 --eval-batches 1 \
  --checkpoint lost/saved --save lost/model.safetensors --save-best --csv lost/run.csv \
  --report lost/run.html --sample 3 --trace lost/trace.json \
  > stdout.log 2> stderr.log < /dev/null || status=$?
[[ $status == 1 && $(grep -c 'the evaluation after step 1 is not finite' stderr.log) == 1 ]] ||
  fail "exit code $status after a last evaluation that is NaN: $(cat stderr.log)"
for file in saved/step-000000001/manifest.json model.safetensors run.csv run.html trace.json; do
  [[ -s lost/$file ]] || fail "no $file after a last evaluation that is NaN"
done
[[ ! -e lost/best ]] || fail "a NaN is the best"
grep -q '"type":"summary"' lost/run.jsonl || fail "no summary: $(cat lost/run.jsonl)"
expect 'by exactly one of --init' "$train_gpt" "${run[@]}" --init model.safetensors --eval-only \
  --checkpoint saved
expect 'model.layers is 3 instead of 2' "$train_gpt" "${stopped[@]}" --eval-every 10 \
  --eval-only --layers 3
expect '--report: rank 0 has' mpirun -n 1 "$train_gpt" "${run[@]}" --report x.html : \
  -n 1 "$train_gpt" "${run[@]}"
