#!/usr/bin/env bash
# Runs comm_bench on 1 to 4 ranks, with each communicator that is available: no element is wrong,
# tables and JSON agree, and bad input gives one line and exit code 2.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
comm_bench=$TESSERA_BIN/comm_bench
few=(--iterations 3 --warmup 1)

# check RANKS DTYPE: checks the results in comm.json, and that stdout.log has them as tables.
check() {
  python3 - "$@" << 'PYTHON'
import json, sys
ranks, dtype = int(sys.argv[1]), sys.argv[2]
report = json.load(open("comm.json"))
assert (report["ranks"], report["dtype"]) == (ranks, dtype), report
element = {"f32": 4, "bf16": 2, "f16": 2}[dtype]
others = (ranks - 1) / ranks
factor = {"exchange": others, "reduce_scatter": others, "all_gather": others,
          "all_reduce": 2 * others, "broadcast": 1, "exchange_v": others,
          "all_gather_v": others, "send_receive": 1}
if dtype != "f32":
    del factor["all_reduce"]

sizes = []
for size in (1000, 8000, 64000, 512000):
    sizes.append(-(-size // (ranks * element)) * ranks * element)
results = report["results"]
assert [(r["collective"], r["bytes"]) for r in results] == [
    (name, size) for name in factor for size in sizes], results

rows = []
for r in results:
    whole = r["collective"] in ("all_reduce", "broadcast", "send_receive")
    assert r["count"] == r["bytes"] // element // (1 if whole else ranks), r
    assert r["wrong"] == 0 and r["time_us"] > 0, r
    algbw = r["bytes"] / r["time_us"] / 1e3
    assert abs(r["algbw_gb_per_s"] / algbw - 1) < 1e-9, r
    assert abs(r["busbw_gb_per_s"] - algbw * factor[r["collective"]]) < 1e-9 * algbw, r
    rows.append([str(r["bytes"]), str(r["count"]), dtype, f"{r['time_us']:.2f}",
                 f"{r['algbw_gb_per_s']:.2f}", f"{r['busbw_gb_per_s']:.2f}", "0"])
lines = open("stdout.log").read().splitlines()
printed = [line.split() for line in lines if not line.startswith("#")]
assert printed == rows, (printed, rows)
heading = ["#", "size", "count", "type", "time", "algbw", "busbw", "#wrong"]
assert sum(line.split() == heading for line in lines) == len(factor), lines
left_out = "# all_reduce is left out: it sums only f32"
assert (left_out in lines) == (dtype != "f32"), lines
PYTHON
}
sizes=(--min-bytes 1k --max-bytes 600kB --factor 8)

must_work "$comm_bench" "${sizes[@]}" "${few[@]}" --json comm.json
check 1 f32
grep -q '^# 1 rank, device cpu, communicator single, f32$' stdout.log || fail "$(cat stdout.log)"
for dtype in f32 bf16 f16; do
  must_work mpirun -n 3 "$comm_bench" "${sizes[@]}" "${few[@]}" --dtype $dtype --json comm.json
  check 3 $dtype
done
must_work mpirun -n 2 "$comm_bench" "${sizes[@]}" "${few[@]}" --json comm.json
check 2 f32
grep -q '^# 2 ranks, device cpu, communicator mpi, f32$' stdout.log || fail "$(cat stdout.log)"

# With --groups, several groups are measured at the same time.
must_work mpirun -n 3 "$comm_bench" "${sizes[@]}" "${few[@]}" --groups 1 --json comm.json
check 3 f32
grep -q 'communicator mpi, the first of 1 group, f32$' stdout.log || fail "$(cat stdout.log)"
must_work mpirun -n 4 "$comm_bench" "${sizes[@]}" "${few[@]}" --groups 2 --json comm.json
check 2 f32
expect '--groups is 2, expected a divisor of the 3 ranks' mpirun -n 3 "$comm_bench" --groups 2

must_work mpirun -n 2 "$comm_bench" --max-bytes 2k --collective all_gather "${few[@]}" --json -
python3 - << 'PYTHON'
import json
report = json.load(open("stdout.log"))
assert [(r["collective"], r["bytes"]) for r in report["results"]] == [("all_gather", 1024)], report
PYTHON
must_work mpirun -n 2 "$comm_bench" --help
[[ $(grep -c -- '--max-bytes' stdout.log) == 1 ]] || fail "help is not there once"

# With GPUs, tests each communicator. Several ranks may share a GPU, but not over NCCL.
show_gpus
if "$comm_bench" --device cuda --max-bytes 2k "${few[@]}" > cuda.log 2>&1 < /dev/null; then
  grep -q '^# 1 rank, device cuda (.*), communicator nccl, f32$' cuda.log || fail "$(cat cuda.log)"
  must_work mpirun -n 2 "$comm_bench" "${sizes[@]}" "${few[@]}" --device cuda --comm mpi \
    --json comm.json
  check 2 f32
  nccl=(mpirun -n 2 "$comm_bench" "${sizes[@]}" "${few[@]}" --device cuda --comm nccl)
  if "${nccl[@]}" --json comm.json > stdout.log 2> stderr.log < /dev/null; then
    grep -q 'device cuda (.*), communicator nccl, f32$' stdout.log || fail "$(cat stdout.log)"
    check 2 f32
  else
    expect 'shares its GPU with another rank' "${nccl[@]}"
  fi
else
  expect '--device cuda: rank 0 has no usable GPU: ' "$comm_bench" --device cuda
  must_work mpirun -n 2 "$comm_bench" --max-bytes 2k "${few[@]}"
  grep -q 'device cpu, communicator mpi' stdout.log || fail "$(cat stdout.log)"
fi

expect 'unknown flag --foo' "$comm_bench" --foo
expect '--min-bytes is 2k, expected at most --max-bytes, 1k' \
  "$comm_bench" --min-bytes 2k --max-bytes 1k
expect "--min-bytes is '4XB', expected a quantity" "$comm_bench" --min-bytes 4XB
expect '--factor is 1, expected at least 2' "$comm_bench" --factor 1
expect '--iterations is 0, expected at least 1' "$comm_bench" --iterations 0
expect '--warmup is -1, expected at least 0' "$comm_bench" --warmup -1
expect "--collective is 'reduce', expected one of" "$comm_bench" --collective reduce
expect "--dtype is 'fp8', expected one of" "$comm_bench" --dtype fp8
expect 'all_reduce sums only f32, --dtype is bf16' \
  "$comm_bench" --collective all_reduce --dtype bf16
expect '--comm nccl: NCCL connects only GPUs, but --device is cpu' \
  "$comm_bench" --device cpu --comm nccl
expect 'no/comm.json: cannot be written' "$comm_bench" --max-bytes 2k --json no/comm.json
mkdir -p run/step-000000001
touch run/step-000000001/manifest.json
expect '--json run/step-000000001/comm.json is in the checkpoint' \
  "$comm_bench" --max-bytes 2k --json run/step-000000001/comm.json
expect '--factor is 1, expected at least 2' mpirun -n 3 "$comm_bench" --factor 1
expect 'no/comm.json: cannot be written' mpirun -n 3 "$comm_bench" --json no/comm.json
[[ -z $(find . -name '*.tmp*') ]] || fail "files were left behind"
