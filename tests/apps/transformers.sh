#!/usr/bin/env bash
# Tests that Hugging Face's Python package `transformers` can load the files that train_gpt --save
# wrote: no key is missing or unexpected, and the loaded model computes a loss. TESSERA_PEER_PYTHON
# names the Python interpreter (default: python3). The test is skipped if this interpreter cannot
# import PyTorch and transformers.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
python=${TESSERA_PEER_PYTHON:-python3}
mkdir out
alone --data text.txt "${tiny[@]}" --steps 1 --eval-every 0 --save out/model.safetensors
status=0
# Tokens are bytes of text. These five tokens are the text "int x".
"$python" "$TESSERA_SOURCE_DIR/bench/peers/hf_roundtrip.py" out --tokens 105,110,116,32,120 \
  > roundtrip.json || status=$?
if [[ $status == 77 ]]; then
  echo "skipped: transformers or PyTorch is not installed"
  exit 77
fi
[[ $status == 0 ]] || fail "transformers did not load the folder: exit code $status"
cat roundtrip.json
grep -q '"loss"' roundtrip.json || fail "no loss in $(cat roundtrip.json)"
