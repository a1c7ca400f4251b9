#!/usr/bin/env bash
# ctest: TIMEOUT 900 PROCESSORS 1
# Tests train_recommender and recommend as users run them. For each objective, results have equal
# bits for any number of ranks and any stage. Also tests that planted factors are recovered, the
# lines of the log, the plan, saving and loading of weights, recommendations with titles, and bad
# input.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
train_gpt=$TESSERA_BIN/train_recommender  # the program that `alone` and `ranks` run
recommend=$TESSERA_BIN/recommend
losses() { grep -E '"type":"(step|eval)"' "$1" | sed -E 's/,"samples_per_s".*"epoch"/,"epoch"/'; }

# Writes ratings of films 1 to 30 by users u1 to u40. Each of three groups of users likes a third of
# the films.
python3 - << 'PYTHON'
import random
random.seed(1)
with open("u.data", "w") as file:
    for user in range(1, 41):
        for film in random.sample(range(1, 31), 18):
            likes = film % 3 == user % 3
            rating = random.choice((4, 5) if likes else (1, 2))
            file.write(f"u{user}\t{film}\t{rating}\t{880000000 + random.randrange(10**6)}\n")
with open("u.item", "w", encoding="latin-1") as file:
    for film in range(1, 31):
        file.write(f"{film}|Caf\xe9 {film} (1990)|01-Jan-1990||\n")
PYTHON
run=(--data u.data --batch 60 --micro-batch 12 --steps 6 --eval-every 3 --factors 10 --lr 0.01
  --bucket-bytes 2048 --log run.jsonl --save run.safetensors)
objectives=(
  "rating --model mf"
  "rating --model svd++ --split time:0.2"
  "ranking --model mf --loss bpr"
  "ranking --model neumf --hidden 8,6,4 --sampled-items 5"
  "ranking --model gmf --split fold:2/3 --l2 0.01"
  "ranking --model svd++ --negatives 2"
)
for objective in "${objectives[@]}"; do
  read -ra flags <<< "--objective $objective"
  for n in 1 2 3 5; do
    for stage in 0 1 2 3; do
      # Objectives whose flags contain "mf" run all pairs of ranks and stages. The other objectives
      # run every number of ranks and every stage, but not every pair.
      [[ $objective == *mf* || $stage == $((n % 4)) || $n == 2 && $stage == 0 ]] || continue
      ranks "$n" "${run[@]}" "${flags[@]}" --stage "$stage"
      as_first "${objective//[ :\/]/_}" "$n ranks at stage $stage"
      grep -q "equal on all ranks ($n)" stdout.log || fail "$(cat stdout.log)"
    done
  done
done
# Tests dense tables, and other optimizers. Row-wise Adagrad has one value of state per row.
for tables in "--tables dense" "--table-optimizer rowwise-adagrad --lr 0.05" \
    "--optimizer adagrad --lr 0.05" "--optimizer sgd --lr 0.5"; do
  read -ra flags <<< "$tables"
  for place in "1 2" "2 0" "3 3" "2 1"; do
    ranks "${place% *}" "${run[@]}" "${flags[@]}" --stage "${place#* }"
    as_first "${tables//[ -]/_}" "$place"
    grep -q "equal on all ranks" stdout.log || fail "$(cat stdout.log)"
  done
done
# Stage 3 gathers the weight and the bias of a layer together, even if they are in two buckets. A
# bucket of this size holds only one parameter.
for tables in sparse dense; do
  ranks 2 "${run[@]}" --objective ranking --model neumf --hidden 8,6,4 --tables "$tables" \
    --bucket-bytes 1024 --stage 3
  grep -q "equal on all ranks (2)" stdout.log || fail "$(cat stdout.log)"
done
# The warning about a large dense table names the flag that makes the tables dense.
alone "${run[@]}" --weight-decay 0.1
grep -q "is dense and has .*; or leave out --weight-decay$" stderr.log || fail "$(cat stderr.log)"
# The plan of memory counts no workspace for an update of rows. With micro-batches of few rows, the
# workspace of backward is so small that it would not hide a workspace of the update.
ranks 1 "${run[@]}" --micro-batch 4 --batch 4 --factors 64 --model mf
grep -q "equal on all ranks" stdout.log || fail "$(cat stdout.log)"
grep -q '"tables":"sparse","table_optimizer":"same"' run.jsonl || fail "$(head -1 run.jsonl)"
grep -q 'rows of .*looked up .*touched' stdout.log || fail "$(cat stdout.log)"
ranks 2 "${run[@]}" --precision bf16 --objective ranking --trace trace.json
grep -q 'equal on all ranks (2)' stdout.log || fail "$(cat stdout.log)"
python3 -c 'import json; json.load(open("trace.json"))'
rm run.jsonl
# A run does not resume from a checkpoint whose MLP had other widths.
perceptron=("${run[@]}" --objective ranking --model neumf --checkpoint perceptron
  --checkpoint-every 3 --checkpoint-async off)
alone "${perceptron[@]}" --hidden 8,6,4
expect 'model.hidden is 8,4 instead of 8,6,4;' "$train_gpt" "${perceptron[@]}" --hidden 8,4
# Logs of earlier versions do not record these widths. A resumed run continues such a log.
rm -r perceptron/step-000000006
sed -i 's/"hidden":"8,6,4",//' run.jsonl
alone "${perceptron[@]}" --hidden 8,6,4
grep -q '"type":"resume","step":3,' run.jsonl || fail "$(cat run.jsonl)"
rm run.jsonl

# Without --data, ratings are drawn from planted factors, and training recovers the factors. A model
# with biases alone would have an RMSE of 0.78, and the second run, with a single factor, is little
# better. The noise in the ratings, which no model can predict, has a standard deviation of 0.5.
alone --log drawn.jsonl
alone --log biases.jsonl --factors 1
python3 - << 'PYTHON'
import json
lines = [json.loads(line) for line in open("drawn.jsonl")]
header, steps = lines[0], [l for l in lines if l["type"] == "step"]
assert header["program"] == "train_recommender" and header["format"] == "drawn"
assert header["model"]["name"] == "mf" and header["objective"] == "rating"
assert list(steps[0]) == ["type", "step", "loss", "grad_norm", "lr", "samples_per_s", "step_ms",
                          "comm_exposed_ms", "epoch"]
evaluations = [l for l in lines if l["type"] == "eval"]
assert list(evaluations[0]) == ["type", "step", "epoch", "rmse", "mae"]
assert len(evaluations) == 20 and evaluations[-1]["epoch"] == 20
biases = [json.loads(line) for line in open("biases.jsonl")][-2]
assert 0.5 < evaluations[-1]["rmse"] < 0.68 < 0.75 < biases["rmse"], (evaluations[-1], biases)
PYTHON

# The log of a ranking run has the metrics of the model, and of a ranking by popularity alone. A
# model of ratings learns the three groups: it recommends films that the user's group likes and that
# the user has not rated.
groups=(--data u.data --batch 60 --micro-batch 12 --objective ranking --split fold:1/4 --epochs 60
  --factors 8 --lr 0.01 --eval-every 540)
alone "${groups[@]}" --log ranked.jsonl
alone --data u.data --batch 60 --micro-batch 12 --split none --epochs 60 --factors 8 --lr 0.01 \
  --l2 0.01 --save model.safetensors
python3 - << 'PYTHON'
import json
lines = [json.loads(line) for line in open("ranked.jsonl")]
last = [l for l in lines if l["type"] == "eval"][-1]
names = ["hr@10", "ndcg@10", "recall@10", "mrr"]
assert list(last) == ["type", "step", "epoch"] + names + ["protocol"]
assert last["protocol"] == "all 30 items" == lines[0]["protocol"]
assert list(lines[0]["popularity"]) == names
PYTHON
"$recommend" model.safetensors --user u7 --user u8 --top 4 --items u.item > found.txt
python3 - << 'PYTHON'
lines = open("found.txt", encoding="utf-8").read().splitlines()
assert len(lines) == 10 and lines[0] == "user u7" and lines[5] == "user u8", lines
seen = {(u, i) for u, i, *_ in (line.split("\t") for line in open("u.data"))}
for user, found in (("u7", lines[1:5]), ("u8", lines[6:])):
    scores = [float(line.split()[0]) for line in found]
    assert scores == sorted(scores, reverse=True) and max(scores) <= 5 and scores[0] > 3, found
    for line in found:
        film = line.split()[1]
        assert (user, film) not in seen and line.endswith(f"  Caf\xe9 {film} (1990)"), line
    assert int(found[0].split()[1]) % 3 == int(user[1:]) % 3, found
PYTHON
[[ $("$recommend" model.safetensors u7 --top 99 --all | wc -l) == 31 ]] || fail "--all"
# The byte 0x9b of a title in Latin-1 is U+009B, which begins a command to a terminal.
LC_ALL=C sed 's/Caf\xe9/Caf\x9b/' u.item > controls.item
must_work "$recommend" model.safetensors u7 --top 1 --items controls.item
grep -q 'Caf\\u009b [0-9]* (1990)$' stdout.log || fail "$(cat stdout.log)"

# Training resumes from saved weights: a tiny step leaves the recommendations unchanged.
alone --data u.data --batch 60 --micro-batch 12 --split none --steps 1 --factors 8 --lr 1e-9 \
  --init model.safetensors --save again.safetensors
"$recommend" again.safetensors --user u7 --user u8 --top 4 --items u.item | diff found.txt -

alone "${run[@]}" --plan --log plan.jsonl
grep -q 'Memory of rank 0' stdout.log || fail "no plan"
[[ ! -e plan.jsonl ]] || fail "a plan wrote a log"
grep -q 'nothing is written for .*--log' stderr.log || fail "$(cat stderr.log)"

must_work "$train_gpt" --help
[[ $(tr -s '[:space:]' ' ' < stdout.log) == *"Columns of --data: user, item, rating and time"* ]] ||
  fail "$(cat stdout.log)"
expect 'nothing.*: ' "$train_gpt" --data nothing
printf 'u1,i1,3\nu2,i1,4\n' > bare.csv
expect "bare.csv, line 1: is not a header .*: 'u1,i1,3'; name the columns" "$train_gpt" \
  --data bare.csv
printf '1\t2\t3\n1\t3\tnan\n' > bad.data
expect 'bad.data.*line 2' mpirun -n 2 "$train_gpt" --data bad.data --columns user,item,rating
printf 'a\tb\nc\td\n' > chosen.data
expect 'no ratings' "$train_gpt" --data chosen.data --columns user,item --split none
printf 'a\tb\na\tc\n' > all.data
expect 'has all 2 items' "$train_gpt" --data all.data --columns user,item --split none --batch 2 \
  --micro-batch 2 --objective ranking
expect 'als' "$train_gpt" --model als
expect 'needs dense tables' "$train_gpt" --tables sparse --weight-decay 0.1
expect 'is for sparse tables, ' "$train_gpt" --tables dense --table-optimizer rowwise-adagrad
expect 'smaller --batch' "$train_gpt" --data u.data --batch 4096
expect 'sampled-items' "$train_gpt" --objective ranking --split fold:1/5 --sampled-items 9
expect 'ranking' "$train_gpt" --negatives 3
expect 'split' "$train_gpt" --split last:2
expect 'left to sample from, expected at least the 29 of --sampled-items' "$train_gpt" \
  --data u.data --batch 60 --micro-batch 12 --objective ranking --sampled-items 29
expect 'eval-every' "$train_gpt" --data u.data --split none --eval-every 5 --batch 60 \
  --micro-batch 12
expect 'widths 5, 3' "$train_gpt" --model neumf --hidden 5,3
expect 'weights are of mf with 8 factors, 40 users and 30 items; .* mf with 9 factors, 40 users' \
  "$train_gpt" --data u.data --batch 60 --micro-batch 12 --factors 9 --init model.safetensors
# Weights are refused if the users or items of the data have other ids.
sed 's/^u/v/' u.data > others.data
expect 'model.safetensors: user 1 has the id "u[0-9]*", but "v[0-9]*" in the data' "$train_gpt" \
  --data others.data --batch 60 --micro-batch 12 --split none --factors 8 --init model.safetensors
# The ids of the weights are also those of a checkpoint that is imported from them.
must_work "$TESSERA_BIN/checkpoint" import model.safetensors imported
imported=(--batch 60 --micro-batch 12 --split none --factors 8 --steps 1 --checkpoint imported)
expect 'model.safetensors, the origin of imported/step-000000000: ids is [0-9a-f]* instead of' \
  "$train_gpt" --data others.data "${imported[@]}"
alone --data u.data "${imported[@]}"
# --eval-only accepts another split than that of the checkpoint, because the ids stay the same. It
# refuses ratings with other ids.
saved=(--batch 60 --micro-batch 12 --factors 8 --steps 2 --checkpoint saved)
alone --data u.data "${saved[@]}"
# checkpoint export is not offered in place of --save, because it writes no ids and histories.
expect 'so the weights of step 1 are not known; give --steps 2 or more (or --epochs)$' \
  "$train_gpt" --data u.data "${saved[@]}" --steps 1 --resume-changed steps,warmup,epochs \
  --save early.safetensors
must_work "$train_gpt" --data u.data "${saved[@]}" --split fold:2/5 --eval-only
# The printed epoch is that of the run that saved the checkpoint. --batch does not change the epoch.
epoch_of() { grep -o '^step 2  epoch [0-9.]*' stdout.log || fail "$(cat stdout.log)"; }
expected=$(epoch_of)
must_work "$train_gpt" --data u.data "${saved[@]}" --split fold:2/5 --eval-only --batch 24
[[ $(epoch_of) == "$expected" ]] || fail "$(cat stdout.log), expected $expected"
# --eval-only accepts a batch larger than the training data. Only training refuses it.
alone --data u.data "${saved[@]}" --eval-only --batch 100000 --micro-batch 7
ids_must_agree='saved/step-000000002: ids is [0-9a-f]* instead of .*: ids must be as in the'
expect "$ids_must_agree" "$train_gpt" --data others.data "${saved[@]}" --eval-only
expect "$ids_must_agree" "$train_gpt" --data others.data "${saved[@]}" --eval-only \
  --resume-changed ids
# A checkpoint is restored with the state of its optimizer, so settings that the state depends on
# must be those of the checkpoint.
expect 'saved/step-000000002: table_optimizer is rowwise-adagrad instead of same;' "$train_gpt" \
  --data u.data "${saved[@]}" --table-optimizer rowwise-adagrad --eval-only
momentum=("${saved[@]}" --optimizer sgd --checkpoint momentum)
alone --data u.data "${momentum[@]}"
expect 'momentum/step-000000002: beta1 is 0 instead of 0.9;' "$train_gpt" --data u.data \
  "${momentum[@]}" --beta1 0 --eval-only
# --eval-only predicts with the mean rating in the file of weights, not with that of the data.
rated=(--data u.data --batch 60 --micro-batch 12 --factors 8)
alone "${rated[@]}" --init model.safetensors --eval-only
mv stdout.log evaluated.txt
grep -q rmse evaluated.txt || fail "$(cat evaluated.txt)"
edit_safetensors model.safetensors shifted.safetensors \
  'describe("tessera_recommender", "mean", json.loads(metadata["tessera_recommender"])["mean"] - 1)'
alone "${rated[@]}" --init shifted.safetensors --eval-only
if cmp -s stdout.log evaluated.txt; then fail "the mean of the weights was ignored"; fi
# NaN weights are an error, although items with NaN scores could be ranked, too.
nan='b"\0\0\xc0\x7f"'
edit_safetensors model.safetensors nan.safetensors \
  "factors = tensors['item_factors.weight']; factors[2] = $nan + factors[2][4:]"
status=0
"$train_gpt" "${rated[@]}" --objective ranking --split fold:1/4 --init nan.safetensors --eval-only \
  > stdout.log 2> stderr.log < /dev/null || status=$?
[[ $status == 1 ]] || fail "exit code $status of a ranking with NaN: $(cat stderr.log)"
grep -q 'the evaluation after step 0 is not finite' stderr.log || fail "$(cat stderr.log)"
grep -q 'ndcg@10 nan ' stdout.log || fail "$(cat stdout.log)"
expect 'no user' "$recommend" model.safetensors --user nobody
expect $'no user "sch\xc3\xb6n\\\\u001b"' "$recommend" model.safetensors --user $'sch\xc3\xb6n\e'
# After an unknown user, recommend reports the error and goes on with the next user.
status=0
"$recommend" model.safetensors --user nobody --user u7 --user u8 --top 4 --items u.item \
  > stdout.log 2> stderr.log || status=$?
[[ $status == 2 && $(grep -c '^error: .*no user "nobody"' stderr.log) == 1 ]] ||
  fail "exit code $status after an unknown user: $(cat stderr.log)"
diff found.txt stdout.log || fail "other recommendations after an unknown user"
# A user who has rated all items gets a line that says so.
printf 'a\tx\t3\na\ty\t4\nb\tx\t5\n' > full.data
alone --data full.data --columns user,item,rating --batch 1 --micro-batch 1 --split none --steps 1 \
  --save full.safetensors
must_work "$recommend" full.safetensors a b
[[ $(grep -c 'nothing is left to recommend: the user has all 2 items' stdout.log) == 1 ]] ||
  fail "$(cat stdout.log)"
expect 'required' "$recommend" model.safetensors
cp text.txt text.safetensors
expect 'text.safetensors' "$recommend" text.safetensors --user u7
