#!/usr/bin/env bash
# A process holds what the ledger says and little more: the heap of blocks the ledger's peak, a
# quarter of it and two huge pages, which is its own bound, and the rest (code, libraries, generated
# kernels, malloc) a constant at most: 26 to 43 MiB on Debian 12 (docs/memory.md, "A process"). A
# run that shards all and computes again holds far less than plain data parallel does. Where the CPU
# does not multiply bf16, the f32 copies of operands are in ledger and plan.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
micro=(--preset micro --steps 3 --global-batch 8 --micro-batch 4 --eval-every 0)

# check LOG LEAST MOST: the ledger's peak is between so many MiB.
check() {
  python3 - "$@" << 'PYTHON'
import json, sys
allowed = 64 << 20
least, most = (int(mebibytes) << 20 for mebibytes in sys.argv[2:])
for rank in [json.loads(line) for line in open(sys.argv[1])][-1]["ranks"]:
    peak, heap = rank["peak_total"], rank["heap_peak"]
    rest = rank["vm_hwm"] - heap
    print(f"rank {rank['rank']}: {peak / 2**20:.1f} MiB at the ledger's peak, "
          f"{heap / 2**20:.1f} in the heap, {rest / 2**20:.1f} besides")
    assert least < peak < most, f"the ledger's peak is {peak}"
    assert heap <= peak * 5 / 4 + (4 << 20), f"the heap has held {heap} bytes"
    assert rest < allowed, f"{rest} bytes besides the heap, allowed are {allowed}"
PYTHON
}
# measure LOG N ARGUMENT...: a run of N ranks, whose planned and measured bytes are equal.
measure() {
  ranks "$2" --data text.txt "${micro[@]}" --log "$1" "${@:3}"
  grep -q 'planned and measured are equal' stdout.log || fail "$(cat stdout.log)"
}
alone --data text.txt "${micro[@]}" --log one.jsonl
check one.jsonl 200 400
measure two.jsonl 2
check two.jsonl 200 400
measure least.jsonl 2 --precision bf16 --stage 3 --recompute
check least.jsonl 100 160
# oneDNN leaves other instructions alone; elsewhere than on x86 it does not read this.
export ONEDNN_MAX_CPU_ISA=AVX512_CORE
measure widened.jsonl 2 --precision bf16 --stage 0
check widened.jsonl 200 400
export ONEDNN_MAX_CPU_ISA=AVX2
measure packed.jsonl 2 --precision bf16 --stage 3 --recompute
check packed.jsonl 100 160
