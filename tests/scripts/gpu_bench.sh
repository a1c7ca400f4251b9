#!/usr/bin/env bash
# Tests bench/gpu.py on the CPU: runs Tessera's measurements at tiny sizes (without PyTorch's, and
# without `gaps`, which needs a GPU), and checks the function that adds up a GPU's idle time. Also
# tests the number of GPUs that the scripts use, and the error of bench/gpu.sh on a machine without
# a GPU.
set -euo pipefail
cd "$TESSERA_SOURCE_DIR"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

printf '#!/bin/sh\nexit 9\n' > "$work/nvidia-smi"
chmod +x "$work/nvidia-smi"
if PATH=$work:$PATH bench/gpu.sh --report "$work/report" 2> "$work/errors"; then
  fail "gpu.sh found a GPU where none is"
fi
grep -q "there is no GPU here" "$work/errors" || fail "$(cat "$work/errors")"

# gpu.idle() looks only at the second half of the recorded time, here from 50 to 100. The 20 units
# from 70 to 90 are idle.
PYTHONPATH=bench python3 -c '
import gpu
lines = ["60 70 memcpy", "0 10 first", "50 65 f(int, char)", "90 100 last"]
assert gpu.idle(lines) == (20, 50), gpu.idle(lines)'

# The scripts use the GPUs that CUDA's driver shows, and not those of nvidia-smi, which ignores
# CUDA_VISIBLE_DEVICES. A small library stands in for the driver.
cat > "$work/driver.c" << 'STUB'
#include <stdlib.h>
int cuInit(unsigned flags) { return flags != 0 || getenv("FAILS") != NULL; }
int cuDeviceGetCount(int* count) { return *count = 3, 0; }
STUB
mkdir "$work/driver"
"$CC" -shared -fPIC -o "$work/driver/libcuda.so.1" "$work/driver.c"
driver=(env "LD_LIBRARY_PATH=$work/driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
[[ $("${driver[@]}" FAILS=1 bench/gpu_count.py) == 0 ]] || fail "GPUs of a driver that fails"
"${driver[@]}" "PATH=$work:$PATH" PYTHONPATH=bench python3 -c '
import gpu, types
runs = []
def comm_bench(args, program, *options, ranks, **env):
    runs.append((options[options.index("--comm") + 1], ranks))
    return {"results": [{"collective": c, "time_us": 1} for c in ("exchange", "reduce_scatter")]}
gpu.ours = comm_bench
gpu.ordered(types.SimpleNamespace(smoke=False, device="cuda"))
assert runs == [("mpi", 2), ("nccl", 3)], runs'

if [[ ! -x $TESSERA_BIN/bench_kernels ]]; then
  echo "skipped: built without TESSERA_BENCH"
  exit 77
fi
bench/gpu.py --smoke --device cpu --python none --bin "$TESSERA_BIN" --threads 2 > "$work/rows"
cat "$work/rows"
for row in "bf16 product" copy "attention T=128 D=64" "layer norm backward" AdamW \
  "nano, bf16: step" "resnet20, bf16" "ordered against fast reduction"; do
  grep -q "^| $row[^|]*| [0-9]" "$work/rows" || fail "no row '$row'"
done
