#!/usr/bin/env bash
# Tests train_gpt as users run it: equal losses and weights for any number of ranks and at every
# stage, the log's lines, the plan, the trace, weights that are saved and loaded again (also by
# generate), and files of tokens as data.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
run=(--data text.txt "${tiny[@]}" --steps 6 --eval-every 3 --dropout 0.1 --bucket-bytes 4096)

alone "${run[@]}" --log one.jsonl --save one.safetensors --sample 20 --trace one.json
grep -q 'planned and measured are equal on all ranks (1)' stdout.log || fail "$(cat stdout.log)"
grep -q -- '--- sample' stdout.log || fail "no sample"
for n in 1 2 3; do
  ranks "$n" "${run[@]}" --log "$n.jsonl" --save "$n.safetensors" --trace "$n.json"
  grep -q "planned and measured are equal on all ranks ($n)" stdout.log || fail "$(cat stdout.log)"
  diff <(losses one.jsonl) <(losses "$n.jsonl") || fail "$n ranks trained differently"
  cmp one.safetensors "$n.safetensors"
done
for stage in 0 1 3; do
  ranks 2 "${run[@]}" --stage "$stage" --overlap off --log stage.jsonl --save stage.safetensors
  diff <(losses one.jsonl) <(losses stage.jsonl) || fail "stage $stage trained differently"
  cmp one.safetensors stage.safetensors
done
ranks 2 "${run[@]}" --reduction fast --log fast.jsonl
[[ $(head -n 1 fast.jsonl) == *'"reduction":"fast"'* ]] || fail "the header does not say fast"
grep -q 'equal on all ranks (2)' stdout.log || fail "$(cat stdout.log)"
# An evaluation of the whole validation part gives the same losses on one and on three ranks.
alone "${run[@]}" --eval-batches 0 --log whole1.jsonl
ranks 3 "${run[@]}" --eval-batches 0 --log whole3.jsonl
diff <(losses whole1.jsonl) <(losses whole3.jsonl) || fail "the evaluation depends on the ranks"

python3 - << 'PYTHON'
import json
lines = [json.loads(line) for line in open("3.jsonl")]
part = ["step"] * 3 + ["eval"]
assert [l["type"] for l in lines] == ["header"] + part + part + ["summary"]
header, summary = lines[0], lines[-1]
assert header["ranks"] == 3 and header["reduction"] == "ordered" and header["communicator"] == "mpi"
assert header["model"]["parameters"] == 256 * 16 + 16 * 16 + 2 * (12 * 16 * 16 + 13 * 16) + 2 * 16
steps = [l for l in lines if l["type"] == "step"]
assert [s["step"] for s in steps] == list(range(1, 7))
for step in steps:
    assert list(step) == ["type", "step", "loss", "grad_norm", "lr", "tokens_per_s", "step_ms",
                          "comm_exposed_ms"]
    assert 0 < step["loss"] < 7 and step["grad_norm"] > 0 and step["step_ms"] > 0
assert steps[-1]["loss"] < steps[0]["loss"]
assert [l["step"] for l in lines if l["type"] == "eval"] == [3, 6]
assert summary["equal"] and [r["rank"] for r in summary["ranks"]] == [0, 1, 2]
for rank in summary["ranks"]:
    for category in ("parameters", "gradients", "optimizer_state", "communication"):
        assert rank["memory"][category]["planned"] == rank["memory"][category]["peak"] > 0
    assert rank["traffic"]["gradients"]["measured"] > 0 and rank["vm_hwm"] > 0
events = json.load(open("3.json"))["traceEvents"]
assert {e["pid"] for e in events} == {0, 1, 2}
assert any(e["name"] == "linear" for e in events)
PYTHON

# Training from saved weights must begin with the loss at which the saving run ended. generate must
# read the weights.
mkdir out
alone --data text.txt "${tiny[@]}" --steps 3 --eval-every 3 --lr 1e-9 --clip 0 \
  --weight-decay 0 --init one.safetensors --save out/model.safetensors --log init.jsonl
python3 - << 'PYTHON'
import json
last = [json.loads(l) for l in open("one.jsonl")][-2]["val_loss"]
first = [json.loads(l) for l in open("init.jsonl")][-2]["val_loss"]
assert abs(first - last) < 1e-4, (first, last)
config = json.load(open("out/config.json"))
assert config["architectures"] == ["GPT2LMHeadModel"] and config["n_embd"] == 16
PYTHON
"$generate" out/model.safetensors --prompt 'int ' --tokens 40 --seed 3 > a.txt
"$generate" out/model.safetensors --prompt 'int ' --tokens 40 --seed 3 > b.txt
cmp a.txt b.txt
[[ $(wc -c < a.txt) == 45 && $(head -c 4 a.txt) == 'int ' ]] || fail "$(cat a.txt)"
"$generate" out/model.safetensors --prompt 'int ' --tokens 40 --seed 4 > c.txt
! cmp -s a.txt c.txt || fail "another seed gave the same text"
"$generate" out/model.safetensors --prompt-tokens 105,110,116 --temperature 0 --tokens 5 > /dev/null

# --plan and --help need no data, end at once, and print their text once.
ranks 3 --plan
[[ $(grep -c 'this run: 3 ranks' stdout.log) == 1 ]] || fail "$(cat stdout.log)"
grep -qE '^ +3 +16 ' stdout.log || fail "no stage 3 on 16 ranks: $(cat stdout.log)"
ranks 2 --help
[[ $(grep -c 'ZeRO stage: 0, 1, 2 or 3' stdout.log) == 1 ]] || fail "$(cat stdout.log)"

# A file of tokens gives the same training with and without llm.c's header.
python3 - << 'PYTHON'
import struct
text = open("text.txt", "rb").read()
tokens = struct.pack(f"<{len(text)}H", *text)
open("plain.bin", "wb").write(tokens)
open("header.bin", "wb").write(struct.pack("<256i", 20240520, 1, len(text), *[0] * 253) + tokens)
PYTHON
# If --data is given several times with different values, a run warns that it uses only the last.
# If the values are equal, it does not warn.
alone "${run[@]}" --data=plain.bin --steps 1 --eval-every 0
[[ $(grep -cx -- '--data is given twice; plain.bin is used' stderr.log) == 1 ]] ||
  fail "$(cat stderr.log)"
alone "${run[@]}" --data text.txt --steps 1 --eval-every 0
if grep -q 'is given' stderr.log; then fail "a repeated value: $(cat stderr.log)"; fi
for data in plain.bin header.bin; do
  alone "${run[@]}" --data "$data" --log bin.jsonl --sample 5
  # The text's log also has bits per byte. Tokens of a .bin file are not known to be bytes.
  diff <(losses one.jsonl | sed 's/,"bits_per_byte":[^}]*//') <(losses bin.jsonl) ||
    fail "$data trained differently from the text"
done
# A run warns if only one of --data and --val-data is a text, unless it evaluates nothing.
for data in 'text.txt plain.bin' 'header.bin text.txt'; do
  ranks 2 "${run[@]}" --data "${data% *}" --val-data "${data#* }" --steps 1
  [[ $(grep -c 'the validation loss has a meaning only if the uint16' stderr.log) == 1 ]] ||
    fail "no warning of two formats: $(cat stderr.log)"
  text='text.txt is a text, whose tokens are its bytes'
  grep -q -- "$text, but --val-data plain.bin is a .bin file of uint16 tokens" stderr.log ||
    grep -q -- "--data header.bin is a .bin file of uint16 tokens, but --val-data $text" \
      stderr.log || fail "$(cat stderr.log)"
done
for agreeing in '--val-data plain.bin --eval-every 0' '--data plain.bin --val-data header.bin'; do
  alone "${run[@]}" --steps 1 $agreeing
  ! grep -q 'has a meaning only' stderr.log || fail "$agreeing: $(cat stderr.log)"
done
[[ -z $(find . -name '*.tmp') ]] || fail "files were left behind"
