#!/usr/bin/env bash
# train_recommender and recommend as users run them: the same bits for any number of ranks, stages
# and objectives, planned factors that are found again, the log's lines, the plan, weights that go
# out and come in again, recommendations with titles, and bad input.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
train_gpt=$TESSERA_BIN/train_recommender  # what alone and ranks run
recommend=$TESSERA_BIN/recommend
losses() { grep -E '"type":"(step|eval)"' "$1" | sed -E 's/,"samples_per_s".*"epoch"/,"epoch"/'; }

# Ratings of films 1 to 30 by users u1 to u40, in three groups who like a third of them each.
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
      # Of all combinations every number of ranks and every stage, and all of two models.
      [[ $objective == *mf* || $stage == $((n % 4)) || $n == 1 && $stage == 2 ]] || continue
      ranks "$n" "${run[@]}" "${flags[@]}" --stage "$stage"
      as_first "${objective//[ :\/]/_}" "$n ranks at stage $stage"
      grep -q "equal on all ranks ($n)" stdout.log || fail "$(cat stdout.log)"
    done
  done
done
ranks 2 "${run[@]}" --precision bf16 --objective ranking --trace trace.json
grep -q 'equal on all ranks (2)' stdout.log || fail "$(cat stdout.log)"
python3 -c 'import json; json.load(open("trace.json"))'
rm run.jsonl

# Planted factors are found again: the error comes close to the noise.
alone --log drawn.jsonl --epochs 12
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
assert len(evaluations) == 12 and evaluations[-1]["epoch"] == 12
print(evaluations[0]["rmse"], evaluations[-1]["rmse"])
assert evaluations[-1]["rmse"] < @LIMIT@, evaluations[-1]
PYTHON

# Ranking knows the groups, popularity does not.
alone "${run[@]}" --objective ranking --split fold:1/4 --epochs 60 --steps 1 2> /dev/null || true
alone --data u.data --batch 60 --micro-batch 12 --objective ranking --split fold:1/4 --epochs 40 \
  --factors 8 --lr 0.01 --log ranked.jsonl --save ranked.safetensors --eval-every 200
python3 - << 'PYTHON'
import json
lines = [json.loads(line) for line in open("ranked.jsonl")]
last = [l for l in lines if l["type"] == "eval"][-1]
assert list(last) == ["type", "step", "epoch", "hr@10", "ndcg@10", "recall@10", "mrr", "protocol"]
assert last["protocol"] == "all 30 items" == lines[0]["protocol"]
assert set(lines[0]["popularity"]) == {"hr@10", "ndcg@10", "recall@10", "mrr"}
PYTHON
