#!/usr/bin/env bash
# A process holds what the ledger says and little more: VmHWM is at most the ledger's peak plus a
# constant for code, libraries, generated kernels, and what the cache of blocks rounds up.
# Measured on Debian 12: 36 MiB with one rank, 48 MiB with two (Open MPI's own buffers). A run that
# shards all and computes again holds far less than plain data parallel does.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
micro=(--preset micro --steps 3 --global-batch 8 --micro-batch 4 --eval-every 0)

# check LOG LEAST MOST: the ledger's peak is between so many MiB.
check() {
  python3 - "$@" << 'PYTHON'
import json, sys
allowed = 64 << 20
least, most = (int(mebibytes) << 20 for mebibytes in sys.argv[2:])
for rank in [json.loads(line) for line in open(sys.argv[1])][-1]["ranks"]:
    above = rank["vm_hwm"] - rank["peak_total"]
    print(f"rank {rank['rank']}: {above / 2**20:.1f} MiB above the ledger's peak")
    assert least < rank["peak_total"] < most, f"the ledger's peak is {rank['peak_total']}"
    assert above < allowed, f"{above} bytes above the ledger's peak, allowed are {allowed}"
PYTHON
}
alone --data text.txt "${micro[@]}" --log one.jsonl
check one.jsonl 200 400
ranks 2 --data text.txt "${micro[@]}" --log two.jsonl
check two.jsonl 200 400
ranks 2 --data text.txt "${micro[@]}" --precision bf16 --stage 3 --recompute --log least.jsonl
check least.jsonl 100 160
