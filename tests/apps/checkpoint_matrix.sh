#!/usr/bin/env bash
# ctest: LABELS full TIMEOUT 3600 PROCESSORS 2
# A checkpoint of any number of ranks and any stage can be resumed with any other number and stage,
# with the bits of an uninterrupted run. Layouts: {1, 2, 3, 5, 7} ranks x stages 0 to 3. All 400
# pairs of a saving and a resuming layout are tested in fp32, and some of them in 16 bits.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
model=(--layers 2 --heads 2 --width 16 --context 16 --global-batch 14 --micro-batch 2)
run=(--data text.txt "${model[@]}" --eval-every 0 --threads 1 --steps 9)

digest_of() { grep -o '"digest":"[0-9a-f]*"' "$1" | tail -n 1; }
layouts=()
for count in 1 2 3 5 7; do
  for stage in 0 1 2 3; do layouts+=("$count $stage"); done
done

# pairs PRECISION EVERY: tests every EVERY-th of all pairs.
pairs() {
  local precision=(--precision "$1") number=0 from to
  alone "${run[@]}" "${precision[@]}" --checkpoint whole --log whole.jsonl
  local expected
  expected=$(digest_of whole.jsonl)
  [[ -n $expected ]] || fail "no digest"
  for from in "${layouts[@]}"; do
    local count=${from% *} stage=${from#* }
    ranks "$count" "${run[@]}" "${precision[@]}" --stage "$stage" --checkpoint from \
      --checkpoint-every 4 --log from.jsonl
    for to in "${layouts[@]}"; do
      ((++number % $2 == 0)) || continue
      ranks "${to% *}" "${run[@]}" "${precision[@]}" --stage "${to#* }" \
        --resume from/step-000000004 --checkpoint to --log to.jsonl
      [[ $(digest_of to.jsonl) == "$expected" ]] ||
        fail "$1: saved on $count ranks at stage $stage, resumed on ${to% *} at stage ${to#* }"
      [[ $(grep '"type":"step"' to.jsonl | head -n 1) == *'"step":5,'* ]] || fail "it began anew"
      rm -r to to.jsonl
    done
    rm -r from from.jsonl
  done
  rm -r whole whole.jsonl
}
pairs fp32 1
pairs bf16 7
pairs fp16 11
