#!/usr/bin/env bash
# `checkpoint import` refuses bad arguments, weights and moments. Most errors about moments name a
# tensor. Also tests moments without counts of updates, counts of updates that differ between
# parameters, and state that PyTorch saves with the code of docs/checkpoints.md.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
. "$TESSERA_SOURCE_DIR/tests/apps/checkpoint_tool.bash"

# Writes weights and moments of a GPT's run and of an image classifier's run.
alone --data text.txt "${tiny[@]}" --eval-every 0 --threads 1 --warmup 2 --steps 8 --checkpoint a \
  --checkpoint-every 4 --checkpoint-async off
mkdir out
tool export a/step-000000004 out/model.safetensors
"$python" moments.py a/step-000000004 moments.safetensors transformer.
must_work "$train_resnet" --batch 12 --micro-batch 4 --eval-every 0 --threads 1 --steps 2 \
  --checkpoint resnet
tool export resnet resnet-2.safetensors
"$python" moments.py resnet/step-000000002 resnet-moments.safetensors ''

fails 2 'checkpoint import FILE DIR' import out
fails 2 'nowhere' import nowhere new
fails 2 'text.txt: ' import text.txt new
for folder in a/step-000000008 ./a/step-000000008/ a/step-000000008/new; do
  fails 2 "DIR $folder is .*the checkpoint .*/a/step-000000008, which would be damaged" \
    import out "$folder"
done
[[ $(find a/step-000000008 | wc -l) == 3 ]] || fail "$(find a/step-000000008)"
fails 2 'has the name of a single checkpoint' import out new/step-000000040
fails 2 'is in out, where the checkpoint is to be written' import out/model.safetensors out
fails 2 'a: it has a checkpoint of step 4 already' import out a --step 4
fails 2 'a/step-000000008 is there, and a run would go on from it' import out a --step 5
fails 2 'step is -1' import out new --step -1
fails 2 'expected one of adamw, adam, sgd' import out new --optimizer lion
fails 2 'shard-bytes is 100, expected at least 2048' import out new --shard-bytes 100
fails 2 'it has exp_avg, exp_avg_sq, but the optimizer sgd keeps momentum_buffer' import out new \
  --moments moments.safetensors --optimizer sgd
# A checkpoint and its files are not weights. The errors say how to get weights from it.
hint='expected weights; write its weights to a file: checkpoint export'
fails 2 "a is a folder of checkpoints, $hint a model" import a none
single=a/step-000000008
fails 2 "$single is a checkpoint, $hint $single model" import $single none
for file in $single/manifest.json $single/shard-*; do
  fails 2 "$file is a file of a checkpoint, $hint $single model" import "$file" none
  expect "$file is a file of a checkpoint, $hint $single model" \
    "$train_gpt" --data text.txt --init "$file" --steps 1
done
[[ ! -e none ]] || fail "a folder for what was refused"
mkdir bare
cp out/model.safetensors bare
fails 2 'bare/config.json is missing' import bare new
# A GPT that lacks a tensor is not imported as a file of any other model.
mkdir part
cp out/config.json part
for name in ln_f.weight wte.weight h.0.ln_1.bias; do
  edit_safetensors out/model.safetensors part/model.safetensors "del tensors['transformer.$name']"
  fails 2 "part/model.safetensors: it has no tensor \"$name\"" import part new
done
edit_safetensors out/model.safetensors named.safetensors \
  "tensors = {'a': tensors['transformer.ln_f.weight']}; metadata = {'model_type': 'gpt2'}"
fails 2 'its metadata describe a GPT .model_type is gpt2., but it lacks at least one' import \
  named.safetensors new
# refused CODE PATTERN: import must refuse moments that the Python statement CODE has changed.
refused() {
  edit_safetensors moments.safetensors wrong.safetensors "$1"
  fails 2 "$2" import out new --moments wrong.safetensors
}
name="'transformer.h.0.ln_1.weight"
refused "del tensors[$name.exp_avg']" 'it has no tensor "h.0.ln_1.weight.exp_avg"'
refused "del tensors[$name.step']" 'it has no tensor "h.0.ln_1.weight.step"'
refused "tensors['h.9.ln_1.weight.exp_avg'] = tensors[$name.exp_avg']" \
  '"h.9.ln_1.weight.exp_avg" is of a parameter that out/model.safetensors does not have'
refused "tensors[$name.max_exp_avg_sq'] = tensors[$name.exp_avg']" \
  'max_exp_avg_sq" is not a state of'
refused "tensors['h.0.ln_1.weight.exp_avg'] = tensors[$name.exp_avg']" 'with and without the prefix'
refused "tensors[$name.momentum_buffer'] = tensors[$name.exp_avg']" 'the state of one optimizer'
refused "tensors[$name.exp_avg'][1] = [4, 4]" 'shape is \[4, 4\], expected \[16\]'
refused "tensors[$name.exp_avg_sq'][2] = struct.pack('<16f', *[-1.0] * 16)" 'element 0 is -1'
for step in -1 1.5 nan inf; do
  refused "tensors[$name.step'][2] = struct.pack('<f', float('$step'))" \
    'h.0.ln_1.weight.step" is .*expected a whole number'
done
refused "tensors[$name.step'][2] = struct.pack('<f', 9)" \
  '"h.0.ln_1.weight" has 9; give the number of finished steps'
[[ ! -e new/step-000000004 ]] || fail "a checkpoint of what was refused"
edit_safetensors moments.safetensors counts.safetensors \
  "tensors[$name.step'][2] = struct.pack('<f', 9)"
tool import out counts --moments counts.safetensors --step 4
"$checkpoint" diff counts a/step-000000004 > tool.log && fail "another count"
says '^  h.0.ln_1.weight/updates: 1 of 1 element, the first at \[\]: 9 and 4$'
says '^111 tensors are equal, 1 differs$'
edit_safetensors resnet-moments.safetensors uncounted.safetensors \
  'tensors = {n: t for n, t in tensors.items() if not n.endswith(".step")}'
fails 2 'has no step; give the number of finished steps' \
  import resnet-2.safetensors new --moments uncounted.safetensors
tool import resnet-2.safetensors uncounted --moments uncounted.safetensors --step 2
tool diff uncounted resnet/step-000000002

# Runs the unchanged lines of docs/checkpoints.md that save PyTorch's state.
if ! "$python" -c 'import torch, safetensors.torch' 2> import.log; then
  printf 'skipped, because Python has no torch and safetensors: the state that PyTorch saves\n'
  exit 0
fi
sed -n '/^```py$/,/^```$/p' "$TESSERA_SOURCE_DIR/docs/checkpoints.md" |
  sed '/^```/d' > save_state.py
grep -q 'def save_state' save_state.py || fail "the documentation has no save_state"
cat > train.py << 'PYTHON'
import json, sys, torch
from safetensors.torch import load_file, save_file
from save_state import save_state
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(7, 300), torch.nn.Tanh(), torch.nn.Linear(300, 3))
for name, make in (("adamw", lambda p: torch.optim.AdamW(p, lr=0.01)),
                   ("sgd", lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9))):
    optimizer = make(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()
    save_file(model.state_dict(), f"{name}.safetensors")
    save_state(model, optimizer, f"{name}-state.safetensors")
    kept = optimizer.state_dict()["state"]
    saved = load_file(f"{name}-state.safetensors")
    assert all(torch.equal(saved[f"0.weight.{k}"], v) for k, v in kept[0].items()), saved.keys()
PYTHON
"$python" train.py
for name in adamw sgd; do
  step=()
  [[ $name == adamw ]] || step=(--step 5)
  tool import "$name.safetensors" "torch-$name" --moments "$name-state.safetensors" "${step[@]}"
  "$python" moments.py "torch-$name/step-000000005" back.safetensors ''
  "$python" - "$name" << 'PYTHON'
import sys, torch
from safetensors.torch import load_file
before, after = load_file(sys.argv[1] + "-state.safetensors"), load_file("back.safetensors")
assert all(torch.equal(before[name], after[name]) for name in before), before.keys()
assert all(value == 5 for name, value in after.items() if name.endswith(".step"))
PYTHON
done
