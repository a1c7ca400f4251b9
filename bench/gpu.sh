#!/usr/bin/env bash
# Builds Tessera for this machine's GPU, runs its tests there, measures it beside PyTorch, and
# writes a table to paste into bench/README.md. In less than eight minutes: what does not fit fails.
#
#   bench/gpu.sh [FOLDER]                     logs and table.md go there; default build/gpu/report
#   TESSERA_DEPS=deps bench/gpu.sh            where no packages can be installed; see docs/cuda.md
#   bench/gpu.sh --emulated [FOLDER]          tiny, on the emulated device: to try this script
#   TESSERA_GPU_SECONDS=900 bench/gpu.sh      with more time; TESSERA_PYTHON names the peer's
#                                             interpreter, or none
#
# Every part has a time limit, and those after a failed one run all the same; the exit code is 1 if
# any failed. Parts that cannot run here are skipped, by name.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

emulated=false
if [[ ${1:-} == --emulated ]]; then
  emulated=true
  shift
fi
[[ $# -le 1 && ${1:-} != -* ]] || die "usage: bench/gpu.sh [--emulated] [FOLDER]"
build=build/gpu
if $emulated; then build=build/gpu_emulated; fi
report=$PWD/$build/report
if [[ $# -eq 1 ]]; then report=$(cd "$called_from" && realpath -m -- "$1"); fi
seconds=${TESSERA_GPU_SECONDS:-470}
python=${TESSERA_PYTHON:-python3}
gpus=1
if ! $emulated; then
  command -v nvidia-smi > /dev/null || die "there is no GPU here: nvidia-smi is not installed"
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -n 1) &&
    [[ $capability =~ ^[0-9]+\.[0-9]+$ ]] || die "there is no GPU here: nvidia-smi finds none"
  gpus=$(nvidia-smi -L | wc -l)
fi
if [[ $python != none ]] && ! "$python" -c 'import torch' 2> /dev/null; then
  say "$python has no torch: measuring without the peer"
  python=none
fi
install_packages
mkdir -p "$report"
rm -f "$report"/*.{log,part,rows,json}

# part NAME SECONDS COMMAND...: runs it with its output in NAME.log, and writes how it went to
# NAME.part. Exit code 77 says skipped, and the last line why.
part() {
  local name=$1 limit=$2 log=$report/$1.log begin=$SECONDS status=0 result
  shift 2
  if ((limit > seconds - SECONDS)); then limit=$((seconds - SECONDS)); fi
  if ((limit > 0)); then
    timeout -k 5 "$limit" "$@" > "$log" 2>&1 < /dev/null || status=$?
  else
    status=124
    printf 'no time was left for it\n' > "$log"
  fi
  case $status in
    0) result=ok ;;
    77) result="skipped: $(tail -n 1 "$log")" ;;
    124 | 137) result="FAILED: not done after $limit s" ;;
    *) result="FAILED with exit code $status" ;;
  esac
  printf '| %s | %s | %s s |\n' "$name" "$result" $((SECONDS - begin)) > "$report/$name.part"
  result+=" ($((SECONDS - begin)) s)"
  if [[ $result != FAILED* ]]; then
    say "$name: $result"
  else
    say "$name: $result"$'\n'"$(tail -n 15 "$log" | sed 's/^/    /')"  # in one piece
    return 1
  fi
}

# rows QUESTION SECONDS: a question of bench/gpu.py, whose rows go into the table.
rows() {
  part "$1" "$2" bash -o pipefail -c '"${@:2}" | tee "$1"' - \
    "$report/$1.rows" "${measure[@]}" "$1" || true
}

# sanitized PROGRAM LOG: the kernels' tests, where compute-sanitizer works on this GPU.
sanitized() {
  local status=0
  if ! command -v compute-sanitizer; then
    echo "compute-sanitizer is not installed"
    exit 77
  fi
  compute-sanitizer --error-exitcode 9 "$1" \
    "causal_attention*,layer_norm*,residual_layer_norm*,cross_entropy*,embedding*,adam*" 2>&1 |
    tee "$2" || status=$?
  if grep -q "Device not supported" "$2"; then
    echo "compute-sanitizer does not support this device"
    exit 77
  fi
  return "$status"
}
export -f sanitized

measure=(python3 bench/gpu.py --bin "$build/bin" --out "$report" --python "$python")
unwanted='~[full]~[cpu]'
if $emulated; then
  measure+=(--smoke)
  configure=(cmake --preset emulated -B "$build" -DTESSERA_BENCH=ON)
  unwanted+='~[slow]'
  export TESSERA_EMULATED_DEVICES=4 OMP_NUM_THREADS=1
else
  configure=(cmake --preset release -B "$build" -DTESSERA_CUDA=ON)  # for the GPUs that it finds
  # PyTorch brings NCCL where the toolkit has none.
  nccl=$("$python" -c 'import nvidia.nccl; print(*nvidia.nccl.__path__)' 2> /dev/null) || nccl=
  if [[ ! -f $(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")/../include/nccl.h &&
    ! -f /usr/include/nccl.h && -f $nccl/include/nccl.h ]]; then
    configure+=("-DTESSERA_NCCL=$nccl/lib/libnccl.so.2" "-DTESSERA_NCCL_INCLUDE=$nccl/include")
  fi
fi
# test_nn is left out: its subject is host memory.
serial=(test_core test_dist)
programs=(test_dist_mpi test_optim_mpi comm_bench bench_kernels bench_gpt_step
  bench_resnet_step)
if ! $emulated; then
  serial+=(test_models test_optim)
  programs+=(test_support bench_kernel_times)
fi
programs+=("${serial[@]}")

# While the compilers run, the GPU is idle: torch.compile fills its cache.
export TORCHINDUCTOR_CACHE_DIR=$PWD/$build/inductor
warm_up=
if [[ $python != none ]] && ! $emulated; then
  timeout -k 5 240 "${measure[@]}" --warm-up > "$report/warm_up.log" 2>&1 < /dev/null &
  warm_up=$!
  trap 'kill "$warm_up" 2> /dev/null || true' EXIT
  cores=$((cores > 4 ? cores - 2 : cores))
fi
compile=(ninja -C "$build" -j "$cores" "${programs[@]}")
part configure 60 "${configure[@]}" && part build 300 "${compile[@]}" ||
  die "nothing can be tested; the logs are in $report"

# What is only right or wrong runs beside the peer's compilation; few at once, because processes
# that share a GPU take turns.
export TESSERA_TEST_DEVICE=cuda
shared=(env TESSERA_TEST_COMM=mpi OMP_NUM_THREADS=1 mpirun -n)
own=(env OMP_NUM_THREADS=1 mpirun -n "$gpus")
alone_checks() {
  local program ranks
  for program in "${serial[@]}"; do
    part "$program" 120 "$build/bin/$program" "$unwanted" || true
  done
  for ranks in 1 2 4; do
    part "test_dist_mpi_np$ranks" 60 "${shared[@]}" "$ranks" "$build/bin/test_dist_mpi" \
      "$unwanted" || true
  done
}
equal_bits_checks() {
  local ranks equal_bits="${unwanted}equal bits*,${unwanted}launched steps*"
  for ranks in 1 2 4; do
    part "equal_bits_mpi_np$ranks" 120 "${shared[@]}" "$ranks" "$build/bin/test_optim_mpi" \
      "$equal_bits" || true
  done
  part "equal_bits_nccl_np$gpus" 120 "${own[@]}" "$build/bin/test_optim_mpi" "$equal_bits" || true
}
alone_checks &
checks=($!)
equal_bits_checks &
checks+=($!)
if ! $emulated; then
  part curve 180 env OMP_NUM_THREADS=$((cores / 2)) "$build/bin/test_support" \
    "GPT micro learns*" || true
fi
wait "${checks[@]}"
if [[ -n $warm_up ]]; then
  wait "$warm_up" || say "the peer does not run; see $report/warm_up.log"
fi

# What is timed has the machine for itself. What has a bar first, what is only reported last.
rows kernels 60
rows gpt2 120
if ! $emulated; then rows gaps 40; fi
rows ordered 30
rows resnet 60
rows gpt2-medium 90
rows gpt2-large 90

if ! $emulated; then
  part sanitizer 90 bash -o pipefail -c 'sanitized "$@"' - "$build/bin/test_core" \
    "$report/sanitizer.txt" || true
fi

{
  if $emulated; then
    printf 'On the emulated device, tiny: that it runs is all this says.\n'
  else
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sort | uniq -c
    grep -m 1 -i 'CUDA compiler identification' "$report/configure.log" || true
  fi
  printf '\n| what | measured | ratio | bar | |\n| --- | --- | --- | --- | --- |\n'
  (cd "$report" && ls -tr -- *.rows | xargs cat) || true
  printf '\n| part | result | time |\n| --- | --- | --- |\n'
  (cd "$report" && ls -tr -- *.part | xargs cat)
} > "$report/table.md"
cat "$report/table.md"
say "$SECONDS s; the table is $report/table.md"
if grep -l FAILED "$report"/*.part > /dev/null; then die "some parts failed"; fi
