#!/usr/bin/env bash
# Trains a GPT on the bytes of a text, once for each of three seeds, with nanoGPT's settings for a
# CPU: 4 layers, 4 heads, width 128, context 64, batch 12, 2,000 steps, no dropout. Prints each
# seed's loss on the whole validation part (the last 10 %), in nats a byte, and the median.
#
#   bench/quality.sh FILE        FILE: tinyshakespeare's input.txt, 1,115,394 bytes
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

data=$(cd "$called_from" && realpath -- "${1:?usage: bench/quality.sh FILE}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for seed in 1 2 3; do
  OMP_NUM_THREADS=1 mpirun -n 2 build/release/bin/train_gpt --data "$data" --preset nano \
    --steps 2000 --global-batch 12 --micro-batch 6 --lr 1e-3 --min-lr 1e-4 --warmup 100 \
    --beta2 0.99 --dropout 0 --eval-every 2000 --eval-batches 0 --seed "$seed" \
    --log "$folder/$seed.jsonl" < /dev/null > /dev/null
  loss=$(sed -n 's/.*"val_loss": *\([0-9.]*\).*/\1/p' "$folder/$seed.jsonl" | tail -n 1)
  echo "seed $seed: $loss"
  echo "$loss" >> "$folder/losses"
done
echo "median: $(sort -n "$folder/losses" | sed -n 2p)"
