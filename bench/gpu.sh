#!/usr/bin/env bash
# Builds Tessera for this machine's GPU, measures it beside PyTorch (the peer), runs its tests on
# the GPU, and checks it with compute-sanitizer. Writes a table to paste into bench/README.md. By
# default, each call ends within ten minutes. It reuses the build of earlier calls. A call that runs
# out of time keeps the results so far.
#
#   bench/gpu.sh                         means --build --measure kernels gpt2, and --peer none
#                                        unless TESSERA_PYTHON is set
#   bench/gpu.sh --measure [QUESTION...] the named questions of bench/gpu.py, or all questions if
#                                        none is named: first for Tessera, then for the peer
#   bench/gpu.sh --programs              every way of running the programs, and GPT micro's learning
#                                        curve; takes minutes, in which nothing else should use
#                                        the GPU, because the parts have time limits
#   bench/gpu.sh --tests                 the tests
#   bench/gpu.sh --sanitize              compute-sanitizer over the operations' tests and a step
#   bench/gpu.sh --build                 builds the programs that the other parts run
#
#   --peer PYTHON     a Python interpreter that has PyTorch, or none to leave the peer out; default
#                     TESSERA_PYTHON or else python3. An interpreter without torch counts as none
#   --report FOLDER   the folder of logs and table.md, to which later calls add; default: report in
#                     the build's folder
#   --emulated        runs tiny sizes on the emulated device, to try this script
#   TESSERA_DEPS=deps bench/gpu.sh       for machines where no packages can be installed
#                                        (docs/cuda.md)
#   TESSERA_GPU_SECONDS=900              time limit of a call, in seconds; default 570
#   TESSERA_GPU_BUILD=FOLDER             for the build; default build/gpu, or build/gpu_emulated
#
# The requested parts of a call run in this order: build, measure, programs, tests, sanitize. Every
# part has a time limit. If the programs to measure cannot be built, the call ends; any other failed
# part does not stop the later parts. The exit code is 1 if any part of this call failed. Parts that
# this machine or build cannot do are listed as skipped.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"

usage() { die "$1; usage: bench/gpu.sh [--emulated] [--build] [--measure [QUESTION...]] \
[--programs] [--tests] [--sanitize] [--peer PYTHON|none] [--report FOLDER]"; }

emulated=false calls=() questions=() python=${TESSERA_PYTHON:-} report=
all_questions=(kernels gpt2 gaps ordered resnet gpt2-medium gpt2-large)
while [[ $# -gt 0 ]]; do
  case $1 in
    --emulated) emulated=true ;;
    --build | --programs | --tests | --sanitize) calls+=("${1#--}") ;;
    --measure)
      calls+=(measure)
      while [[ $# -gt 1 && $2 != -* ]]; do
        [[ " ${all_questions[*]} " == *" $2 "* ]] ||
          die "--measure $2: expected one of ${all_questions[*]}"
        questions+=("$2")
        shift
      done
      ;;
    --peer | --report)
      [[ $# -gt 1 ]] || usage "$1 needs an argument"
      case $1 in
        --peer)
          python=$2
          if [[ $2 == */* ]]; then python=$(cd "$called_from" && realpath -ms -- "$2"); fi
          ;;
        --report) report=$(cd "$called_from" && realpath -m -- "$2") ;;
      esac
      shift
      ;;
    *) usage "unknown argument $1" ;;
  esac
  shift
done
if [[ ${#calls[@]} -eq 0 ]]; then
  calls=(build measure)
  questions=(kernels gpt2)
  python=${python:-none}
fi
python=${python:-python3}
wants() { [[ " ${calls[*]} " == *" $1 "* ]]; }
if [[ ${#questions[@]} -eq 0 ]]; then questions=("${all_questions[@]}"); fi

default_build=build/gpu
if $emulated; then default_build=build/gpu_emulated; fi
build=$(realpath -m -- "${TESSERA_GPU_BUILD:-$default_build}")
report=${report:-$build/report}
seconds=${TESSERA_GPU_SECONDS:-570}
gpus=2
if ! $emulated; then
  command -v nvidia-smi > /dev/null || die "there is no GPU here: nvidia-smi is not installed"
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | sed -n 1p) &&
    [[ $capability =~ ^[0-9]+\.[0-9]+$ ]] || die "there is no GPU here: nvidia-smi finds none"
fi
if wants measure && [[ $python != none ]] && ! "$python" -c 'import torch' 2> /dev/null; then
  say "$python has no torch: measuring without the peer"
  python=none
fi
install_packages
if ! $emulated; then
  gpus=$(python3 bench/gpu_count.py)
  ((gpus > 0)) || die "there is no GPU here: CUDA shows none (CUDA_VISIBLE_DEVICES)"
fi
mkdir -p "$report"
# All ranks are on one host, so the loopback interface is enough for NCCL. A machine without a
# network has no other interface.
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}
export TESSERA_SOURCE_DIR=$PWD TESSERA_BIN=$build/bin
touch "$report/.began"
# compute-sanitizer may be in the toolkit's folder, outside of PATH.
if [[ -d /usr/local/cuda/bin ]]; then PATH=$PATH:/usr/local/cuda/bin; fi
# Prints the folder of a library in PyTorch's packages, for toolkits that lack the library.
brought() { python3 -c "import nvidia.$1; print(*nvidia.$1.__path__)" 2> /dev/null || true; }
cudnn=$(brought cudnn)
if [[ -d $cudnn/lib ]]; then
  export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$cudnn/lib
fi

# part NAME SECONDS COMMAND...: runs the command for at most SECONDS, or for the rest of the call's
# time if that is shorter. The output is in NAME.log, and the result in NAME.part. A command that
# exits with 77 counts as skipped; the last line of the log says why. Returns 1 if the command
# failed.
part() {
  local name=$1 limit=$2 log=$report/$1.log begin=$SECONDS status=0 result
  shift 2
  if ((limit > seconds - SECONDS)); then limit=$((seconds - SECONDS)); fi
  if ((limit > 0)); then
    timeout -k 5 "$limit" "$@" > "$log" 2>&1 < /dev/null || status=$?
  else
    status=late
    printf 'the %s s of this call (TESSERA_GPU_SECONDS) are over\n' "$seconds" > "$log"
  fi
  case $status in
    0) result=ok ;;
    late) result="FAILED: no time was left" ;;
    77) result="skipped: $(tail -n 1 "$log")" ;;
    124 | 137) result="FAILED: not done after $limit s" ;;
    *) result="FAILED with exit code $status" ;;
  esac
  printf '| %s | %s | %s s |\n' "$name" "$result" $((SECONDS - begin)) > "$report/$name.part"
  result+=" ($((SECONDS - begin)) s)"
  if [[ $result != FAILED* ]]; then
    say "$name: $result"
  else
    # Prints one message, so that lines of parallel parts do not mix.
    say "$name: $result"$'\n'"$(tail -n 15 "$log" | sed 's/^/    /')"
    return 1
  fi
}

# --- build

build_all() {
  local nccl configure toolkit measured rest
  configure=(cmake --preset release -B "$build" -DTESSERA_CUDA=ON)  # for the GPUs of this machine
  if $emulated; then
    configure=(cmake --preset emulated -B "$build")
    # A build that is already configured keeps its configuration, which may include a sanitizer.
    if [[ -f $build/build.ninja ]]; then configure=(true); fi
  else
    toolkit=$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")/../include
    nccl=$(brought nccl)
    if [[ ! -f $toolkit/nccl.h && ! -f /usr/include/nccl.h && -f $nccl/include/nccl.h ]]; then
      configure+=("-DTESSERA_NCCL=$nccl/lib/libnccl.so.2" "-DTESSERA_NCCL_INCLUDE=$nccl/include")
    fi
    if [[ ! -f $toolkit/cudnn.h && ! -f /usr/include/cudnn.h && -f $cudnn/include/cudnn.h ]]; then
      configure+=("-DTESSERA_CUDNN_INCLUDE=$cudnn/include")
    fi
  fi
  # The programs that a call without flags measures are built first, in case the build runs out of
  # time.
  measured=(bench_kernels bench_gpt_step tune)
  rest=(bench_resnet_step comm_bench train_gpt train_resnet train_recommender test_core
    test_optim_kernels test_dist test_models test_dist_mpi test_optim_mpi)
  if ! $emulated; then rest+=(test_optim test_train generate); fi
  part configure 90 "${configure[@]}" || return 1
  if grep -q 'bench_kernel_times:' <(ninja -C "$build" -t targets all 2> /dev/null); then
    measured+=(bench_kernel_times)
  elif ! $emulated; then
    say "the toolkit has no CUPTI: the build goes on without bench_kernel_times"
  fi
  sed -n 's/^-- \(Without.*\)/== \1/p' "$report/configure.log"
  part build 400 ninja -C "$build" -j "$cores" "${measured[@]}" || return 1
  # The limit is high, because a call that only builds may spend its whole time here.
  part build_rest 500 ninja -C "$build" -j "$cores" "${rest[@]}" || true
}

# --- measure

# Measures our side of all questions first, and then the peer, which compiles for minutes.
measure_all() {
  local question
  local ask=(python3 bench/gpu.py --bin "$build/bin" --out "$report")
  if $emulated; then ask+=(--smoke --device cuda); fi
  # answer NAME ARGUMENT...: asks bench/gpu.py, and keeps the rows of the table in NAME.rows.
  answer() {
    part "$1" 240 bash -o pipefail -c '"${@:2}" | tee "$1"' - "$report/$1.rows" "${ask[@]}" \
      "${@:2}" || true
  }
  for question in "${questions[@]}"; do
    if $emulated && [[ $question == gaps ]]; then continue; fi  # needs a GPU's driver
    answer "$question" "$question" --python none
  done
  if [[ $python == none ]]; then return; fi
  # The next call reuses what torch.compile has compiled.
  export TORCHINDUCTOR_CACHE_DIR=$PWD/build/inductor
  for question in "${questions[@]}"; do
    if [[ $question == gaps || $question == ordered ]]; then continue; fi  # these have no peer
    answer "$question-peer" "$question" --python "$python" --peer-only
  done
}

# --- programs

programs_all() {
  local quick=1
  if ! $emulated; then
    quick=0
    part curve 180 env TESSERA_TEST_DEVICE=cuda OMP_NUM_THREADS=$((cores / 2)) \
      "$build/bin/test_train" "GPT micro learns on CUDA*" || true
    part devices 120 bash tests/apps/devices.sh || true
  fi
  part programs 500 env TESSERA_QUICK=$quick bash tests/apps/gpu_paths.sh || true
}

# --- tests

# Tests may run side by side, unlike measurements, but only about ten at once, because processes
# that share a GPU take turns. test_nn is left out, because it tests host memory only.
tests_all() {
  local unwanted='~[full]~[.]~[cpu]' waiting=()
  local serial
  if $emulated; then
    # A few tests show that this script works; ctest runs all tests.
    serial=(test_core test_dist)
  else
    # Two tests are started elsewhere: test_core, which runs in groups, and test_models, which takes
    # longest and runs beside all others.
    serial=(test_optim_kernels test_dist test_optim)
  fi
  local bits="~[full]~[cpu]~[slow]equal bits*" own=(env OMP_NUM_THREADS=1 mpirun -n "$gpus")
  local steps="~[full]~[cpu]~[slow]launched steps*"
  local sharing=(env TESSERA_TEST_COMM=mpi OMP_NUM_THREADS=1 mpirun -n)
  local collectives='~[full]~[.]~[cpu]~[slow]'
  local over_nccl=$collectives
  if $emulated; then
    over_nccl='~[cpu]NCCL*'
    bits="~[cpu]equal bits over ranks in f32*" steps="~[cpu]*read after the next is launched*"
  fi
  alone() {
    local program spec
    for program in "${serial[@]}"; do
      spec=$unwanted
      if $emulated && [[ $program == test_core ]]; then spec+='~[slow]layer_norm*'; fi
      if $emulated && [[ $program == test_dist ]]; then spec+='*layout*'; fi
      part "$program" 300 env TESSERA_TEST_DEVICE=cuda "$build/bin/$program" "$spec" || true
    done
  }
  # test_core takes ten minutes on a GPU, most of it in waits, so its cases run side by side in
  # groups: one for each list of first letters below, and one for all other cases.
  core_groups() {
    local group letter spec rest=$unwanted running=()
    for group in a bcd efgh ijklmnop qrs; do
      spec=
      for ((i = 0; i < ${#group}; ++i)); do
        letter=${group:i:1}
        spec+="${spec:+,}$unwanted$letter*"
        rest+="~\"$letter*\""
      done
      # TESSERA_UNMATCHED_PATTERNS allows letters with which no title begins.
      part "test_core_$group" 540 env TESSERA_TEST_DEVICE=cuda TESSERA_UNMATCHED_PATTERNS=1 \
        "$build/bin/test_core" "$spec" &
      running+=($!)
    done
    part test_core_rest 540 env TESSERA_TEST_DEVICE=cuda "$build/bin/test_core" "$rest" || true
    wait "${running[@]}" || true
  }
  over_ranks() {
    local ranks numbers=(1 2 4)
    if $emulated; then numbers=(2); fi
    for ranks in "${numbers[@]}"; do
      part "test_dist_mpi_np$ranks" 90 env TESSERA_TEST_DEVICE=cuda "${sharing[@]}" "$ranks" \
        "$build/bin/test_dist_mpi" "$collectives" || true
      part "equal_bits_mpi_np$ranks" 200 env TESSERA_TEST_DEVICE=cuda "${sharing[@]}" "$ranks" \
        "$build/bin/test_optim_mpi" "$bits,$steps" || true
    done
    part "test_dist_nccl_np$gpus" 90 env TESSERA_TEST_DEVICE=cuda "${own[@]}" \
      "$build/bin/test_dist_mpi" "$over_nccl" || true
    part "equal_bits_nccl_np$gpus" 200 env TESSERA_TEST_DEVICE=cuda "${own[@]}" \
      "$build/bin/test_optim_mpi" "$bits,$steps" || true
  }
  alone &
  waiting+=($!)
  over_ranks &
  waiting+=($!)
  if ! $emulated; then
    part test_models 540 env TESSERA_TEST_DEVICE=cuda "$build/bin/test_models" "$unwanted" &
    waiting+=($!)
    core_groups &
    waiting+=($!)
  fi
  wait "${waiting[@]}"
}

# --- sanitize

# sanitized TOOL COMMAND...: runs the command under compute-sanitizer. Exits with 77 if
# compute-sanitizer is not installed or does not work on this GPU.
sanitized() {
  local status=0 output only=() help
  if ! command -v compute-sanitizer; then
    echo "compute-sanitizer is not installed"
    exit 77
  fi
  # Check only Tessera's kernels: findings in a library's kernels cannot be fixed here.
  help=$(compute-sanitizer --help 2>&1) || true
  if [[ $help == *" --kernel-name "* ]]; then
    only=(--kernel-name kns=tessera)
  elif [[ $help == *" --filter "* ]]; then
    only=(--filter kns=tessera)
  else
    echo "this compute-sanitizer cannot leave out kernels of libraries, which may have findings too"
  fi
  # NCCL and the CUDA runtime try calls that may fail, and handle their errors.
  if [[ $1 == memcheck ]]; then only+=(--report-api-errors no); fi
  output=$(mktemp)
  trap 'rm -f "$output"' EXIT
  compute-sanitizer --tool "$1" --error-exitcode 9 "${only[@]}" "${@:2}" 2>&1 | tee "$output" ||
    status=$?
  if grep -q "Device not supported" "$output"; then
    echo "compute-sanitizer does not support this device"
    exit 77
  fi
  return "$status"
}
export -f sanitized

sanitize_all() {
  local tool limit tools=4 check=(bash -o pipefail -c 'sanitized "$@"' -)
  local kernels='~[full]~[slow]~[cpu]causal_attention*,~[full]~[slow]~[cpu]layer_norm*'
  kernels+=',~[full]~[slow]~[cpu]residual_layer_norm*,~[full]~[slow]~[cpu]*cross_entropy*'
  kernels+=',~[full]~[slow]~[cpu]embedding*,~[full]~[slow]~[cpu]batch_norm*' update='~[cpu]'
  if $emulated; then kernels='~[cpu]layer_norm of*' update='~[cpu]sgd_update against*'; fi
  # Besides the tests, a training run is checked as users start it. The run uses device memory,
  # while the tests use memory that is shared with the host.
  local step=("$build/bin/bench_gpt_step" --device cuda --precision bf16 --preset nano --batch 2
    --steps 2 --warmup 1 --threads 1)
  for tool in memcheck racecheck synccheck initcheck; do
    limit=$(((seconds - SECONDS) / (4 * tools)))  # a tool's three parts get 1, 2 and 1 times this
    tools=$((tools - 1))
    part "sanitize_${tool}_step" "$limit" "${check[@]}" "$tool" "${step[@]}" || true
    part "sanitize_${tool}_kernels" $((2 * limit)) env TESSERA_TEST_DEVICE=cuda "${check[@]}" \
      "$tool" "$build/bin/test_core" "$kernels" || true
    part "sanitize_${tool}_update" "$limit" env TESSERA_TEST_DEVICE=cuda "${check[@]}" "$tool" \
      "$build/bin/test_optim_kernels" "$update" || true
  done
}

# --- report

write_table() {
  {
    if $emulated; then
      printf 'On the emulated device, tiny: that it runs is all this says.\n'
    else
      nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | sort | uniq -c
      grep -m 1 'With CUDA: nvcc' "$report/configure.log" || true
    fi
    printf '\n| what | measured | ratio | bar | |\n| --- | --- | --- | --- | --- |\n'
    find "$report" -name '*.rows' -printf '%T@ %p\n' | sort -n | cut -d' ' -f2- |
      while IFS= read -r file; do grep '^|' "$file" || true; done
    printf '\n| part | result | time |\n| --- | --- | --- |\n'
    find "$report" -name '*.part' -printf '%T@ %p\n' | sort -n | cut -d' ' -f2- |
      while IFS= read -r file; do cat "$file"; done
  } > "$report/table.md"
}
trap write_table EXIT

if $emulated; then export TESSERA_EMULATED_DEVICES=2 OMP_NUM_THREADS=1; fi
if wants build; then
  build_all || die "what was not built cannot be tested; the logs are in $report"
fi
[[ -x $build/bin/bench_kernels ]] || die "$build has no build: bench/gpu.sh --build comes first"
if wants measure; then measure_all; fi
if wants programs; then programs_all; fi
if wants tests; then tests_all; fi
if wants sanitize; then sanitize_all; fi
write_table
trap - EXIT
cat "$report/table.md"
say "$SECONDS s; the table is $report/table.md"
if [[ -n $(find "$report" -name '*.part' -newer "$report/.began" -exec grep FAILED {} +) ]]; then
  die "some parts failed"
fi
