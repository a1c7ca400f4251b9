#!/usr/bin/env bash
# A command with --resume-changed goes on after the run has saved checkpoints of its own, with a
# step left and with none, although these checkpoints may not record the settings that it names.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
run=(--data text.txt --layers 1 --heads 2 --width 16 --context 8 --global-batch 4 --micro-batch 2
  --eval-every 0 --threads 1 --warmup 1 --checkpoint saved --checkpoint-every 1)

# change N NAMES BEFORE NOW: a run on N ranks with the flags BEFORE is resumed on one rank with the
# flags NOW. NAMES are the settings that differ, besides `steps`.
change() {
  local before now
  read -ra before <<< "$3"
  read -ra now <<< "$4"
  local command=("${run[@]}" "${now[@]}" --steps 4 --resume-changed "steps,$2")
  rm -rf saved
  ranks "$1" "${run[@]}" "${before[@]}" --steps 2
  alone "${command[@]}"
  grep -q 'going on from saved/step-000000002' stderr.log || fail "$(cat stderr.log)"
  rm -r saved/step-000000004
  alone "${command[@]}"
  grep -q 'going on from saved/step-000000003' stderr.log || fail "$(cat stderr.log)"
  alone "${command[@]}"
  grep -q 'all 4 steps are done' stderr.log || fail "$(cat stderr.log)"
}
change 1 loss_rows '--loss-rows 8' ''
change 1 loss_rows '' '--loss-rows 8'
change 1 reduction,ranks,stage,bucket_bytes '--reduction fast' ''
change 1 reduction,ranks,stage,bucket_bytes '' '--reduction fast'
change 2 reduction,ranks,communicator,stage,bucket_bytes '--reduction fast' ''
change 2 ranks,communicator '--reduction fast' '--reduction fast'
