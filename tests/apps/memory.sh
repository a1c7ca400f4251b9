#!/usr/bin/env bash
# A process uses little more memory than the memory ledger counts. It has one heap for small and one
# for large blocks (core/memory.cpp). Together they hold at most 5/4 of the ledger's peak plus two
# huge pages (2 MiB each). All other memory (code, libraries, generated kernels, malloc) takes 25 to
# 60 MiB on Debian 12 (docs/memory.md, "A process"), and must stay below 72 MiB. Stage 3 with
# recomputation holds far less than plain data parallelism. The runs that write widened.jsonl and
# packed.jsonl imitate CPUs without bf16 instructions: ledger and plan must count the f32 copies of
# operands. The last test counts page faults, with AVX2 but without AVX-512: a step must not return
# memory to the system that the next step needs.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
micro=(--preset micro --steps 3 --global-batch 8 --micro-batch 4 --eval-every 0)

# check LOG LEAST MOST: the ledger's peak must be between LEAST and MOST MiB, and the heap and all
# other memory must stay within the limits that this file's header names.
check() {
  python3 - "$@" << 'PYTHON'
import json, sys
allowed = 72 << 20
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
# measure LOG N ARGUMENT...: runs N ranks, whose planned and measured bytes must be equal.
measure() {
  ranks "$2" --data text.txt "${micro[@]}" --log "$1" "${@:3}"
  grep -q 'planned and measured are equal' stdout.log || fail "$(cat stdout.log)"
}
alone --data text.txt "${micro[@]}" --log one.jsonl
check one.jsonl 200 400
measure two.jsonl 2
check two.jsonl 150 400
measure least.jsonl 2 --precision bf16 --stage 3 --recompute
check least.jsonl 100 160
# AVX512_CORE has no bf16 instructions, so oneDNN multiplies f32 copies. With AVX2, oneDNN also
# packs operands into memory from malloc, and no ledger counts this memory (docs/memory.md). On CPUs
# other than x86 oneDNN ignores the variable.
export ONEDNN_MAX_CPU_ISA=AVX512_CORE
measure widened.jsonl 2 --precision bf16 --stage 0
check widened.jsonl 150 400
export ONEDNN_MAX_CPU_ISA=AVX2
measure packed.jsonl 2 --precision bf16 --stage 3 --recompute
check packed.jsonl 100 160

# faults STEPS: prints the number of page faults of a run of STEPS steps on two threads.
faults() {
  python3 - "$train_gpt" --data text.txt --threads 2 --steps "$1" --eval-every 0 << 'PYTHON'
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt)
PYTHON
}
# A step must have fewer than 50 page faults on average. With malloc's default thresholds, a step of
# nano has several hundred. But a run that gets no huge pages has 512 faults in place of each huge
# page. So the test tries up to three pairs of runs, and one pair below the limit is enough.
for _ in 1 2 3; do
  few=$(faults 10) many=$(faults 30)
  echo "page faults of 10 steps: $few, of 30 steps: $many"
  ((many - few >= 20 * 50)) || break
done
((many - few < 20 * 50)) || fail "20 steps fault in $((many - few)) pages"
