#!/usr/bin/env bash
# If ranks are started with different flags, files or environment variables, the job ends before the
# first step, in bounded time. The error names the difference, the ranks and their values.
# Differences that do no harm are accepted.
# ctest: TIMEOUT 900 PROCESSORS 1
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
resnet=$TESSERA_BIN/train_resnet
run=("$train_gpt" --data text.txt "${tiny[@]}" --steps 3 --eval-every 0)
images=("$resnet" --batch 4 --micro-batch 2 --steps 1 --eval-every 0)

# job N COMMAND... : M COMMAND...
# Runs `mpirun -n N COMMAND... : -n M COMMAND...`. Sets `status` to the exit code.
job() {
  local arguments=(-n) argument
  for argument in "$@"; do
    arguments+=("$argument")
    if [[ $argument == : ]]; then arguments+=(-n); fi
  done
  status=0
  timeout 120 mpirun "${arguments[@]}" > stdout.log 2> stderr.log < /dev/null || status=$?
}
# differ TEXT N COMMAND... : M COMMAND...: the job must end with exit code 2 and the error TEXT.
differ() {
  local text=$1
  shift
  job "$@"
  [[ $status == 2 ]] || fail "exit code $status instead of 2: $*"$'\n'"$(cat stderr.log)"
  [[ $(grep -cF -- "error: $text" stderr.log) == 1 ]] ||
    fail "not '$text' once from: $*"$'\n'"$(cat stderr.log)"
}
# agree N COMMAND... : M COMMAND...: the job must succeed.
agree() {
  job "$@"
  [[ $status == 0 ]] || fail "exit code $status: $*"$'\n'"$(cat stderr.log)"
}

# Flags differ: flags that change numbers, flags that change messages, and flags that change what a
# rank does.
differ '--seed: rank 0 has 1, rank 2 has 7; all ranks of a job must have the same' \
  2 "${run[@]}" : 1 "${run[@]}" --seed 7
differ '--lr: rank 0 has 0.5, ranks 1, 2 have 0.25' 1 "${run[@]}" --lr 0.5 : \
  2 "${run[@]}" --lr 0.25
for flag in 'stage 0 3' 'precision fp32 bf16' 'device cpu auto' 'eval-every 0 2' 'sample 0 5' \
  'reduction ordered fast'; do
  read -r name first second <<< "$flag"
  differ "--$name: rank 0 has $first, rank 1 has $second" 1 "${run[@]}" "--$name" "$first" : \
    1 "${run[@]}" "--$name" "$second"
done
differ '--plan: rank 0 has off, rank 1 has on' 1 "${run[@]}" : 1 "${run[@]}" --plan
differ '--help: rank 0 has on, rank 1 has off' 1 "${run[@]}" --help : 1 "${run[@]}"
for name in save trace val-data; do
  differ "--$name: rank 0 has none, rank 1 has a value" 1 "${run[@]}" : \
    1 "${run[@]}" "--$name" text.txt.2
done
# Ranks may name a checkpoint by different paths, but must find the same one.
must_work "${run[@]}" --checkpoint saved --checkpoint-every 2 --checkpoint-async off
cp -r saved/step-000000003 step-000000003
resumed=("${run[@]}" --steps 4 --resume-changed steps)
agree 1 "${resumed[@]}" --resume saved/step-000000003 : \
  1 "${resumed[@]}" --resume step-000000003
differ 'the checkpoint to resume from: rank 0 has step 2, digest ' \
  1 "${resumed[@]}" --resume saved/step-000000002 : 1 "${resumed[@]}" --resume step-000000003
differ '--resume: rank 0 has a folder, rank 1 has never' \
  1 "${run[@]}" --resume step-000000003 : 1 "${run[@]}" --resume never
# The paths of --checkpoint may differ too, but must lead to one folder.
mkdir shared
ln -s shared linked
agree 1 "${run[@]}" --checkpoint shared : 1 "${run[@]}" --checkpoint linked
[[ -e shared/step-000000003/manifest.json ]] || fail "no checkpoint: $(ls shared)"
differ 'the folder of --checkpoint: rank 0 has a folder that all ranks must share, rank 1 has '\
'another folder, elsewhere; ' \
  1 "${run[@]}" --checkpoint here : 1 "${run[@]}" --checkpoint elsewhere
[[ ! -e here/step-000000003 && ! -e elsewhere ]] || fail "a refused run wrote a checkpoint"
echo 'seed = 7' > seed.ini
differ '--seed: rank 0 has 1, rank 1 has 7' 1 "${run[@]}" : 1 "${run[@]}" --config seed.ini

# If one rank cannot start, the other ranks end too.
differ '--data is required (rank 1)' 1 "${run[@]}" : 1 "$train_gpt" "${tiny[@]}"
differ '--stage is 7, expected 0, 1, 2 or 3 (rank 1)' 1 "${run[@]}" : 1 "${run[@]}" --stage 7
differ 'nothing.txt: cannot be opened: No such file or directory (rank 1)' 1 "${run[@]}" : \
  1 "${run[@]}" --data nothing.txt
# The rank with bad input says so before the other rank's time limit is over.
differ 'nothing.txt: cannot be opened: No such file or directory (rank 1)' \
  1 "${run[@]}" --comm-timeout 2 : 1 "${run[@]}" --comm-timeout 2 --data nothing.txt
differ '--stage is 7, expected 0, 1, 2 or 3 (rank 1)' 1 "${run[@]}" --comm-timeout 2 : \
  1 "${run[@]}" --comm-timeout 2 --stage 7

# Ranks run different programs, or different builds of one program.
differ 'program: rank 0 has train_gpt ' 1 "${run[@]}" : 1 "${images[@]}"
python3 - "$train_gpt" << 'PYTHON'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
# The ELF note with the build id: a name of 4 bytes, an id of 20 bytes, and type 3.
note = data.index(b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0")
data[note + 16] ^= 1
open("train_gpt", "wb").write(data)
PYTHON
chmod +x train_gpt
differ 'build: rank 0 has ' 1 "${run[@]}" : 1 ./train_gpt "${run[@]:1}"

# Data differs in contents, in size, or in the format in which the same bytes are read.
for i in $(seq 20000); do echo "line $i of a text"; done > long.txt
mkdir b
for name in text.txt long.txt; do
  { head -c -1 "$name" && printf x; } > "b/$name"
done
differ '--data: rank 0 has ' 1 "${run[@]}" : 1 "${run[@]}" --data b/text.txt
grep -q "$(wc -c < text.txt | sed ':a;s/\B[0-9]\{3\}\>/,&/;ta') bytes with digest" stderr.log ||
  fail "no size: $(cat stderr.log)"
differ '--data: rank 0 has ' 1 "${run[@]}" : 1 "${run[@]}" --data long.txt
differ '--data: rank 0 has ' 1 "${run[@]}" --data long.txt : 1 "${run[@]}" --data b/long.txt
differ '--val-data: rank 0 has ' 1 "${run[@]}" --val-data text.txt : \
  1 "${run[@]}" --val-data b/text.txt
head -c 20000 /dev/zero > zeros.txt
cp zeros.txt zeros.bin
differ '--data: rank 0 has 20,000 bytes' 1 "${run[@]}" --data zeros.txt : \
  1 "${run[@]}" --data zeros.bin
# By default ranks compare only 64 blocks spread over the file. With --verify-data they compare
# whole files, and so also find a changed byte that lies in none of these blocks.
{ head -c 4500 long.txt && printf '#' && tail -c +4502 long.txt; } > b/long.txt
cmp -s long.txt b/long.txt && fail "the files are equal"
agree 1 "${run[@]}" --data long.txt : 1 "${run[@]}" --data b/long.txt
differ '--data: rank 0 has ' 1 "${run[@]}" --verify-data --data long.txt : \
  1 "${run[@]}" --verify-data --data b/long.txt

# Initial weights differ.
for seed in 1 2; do alone "${run[@]:1}" --seed "$seed" --save "$seed.safetensors"; done
differ '--init: rank 0 has none, rank 1 has a value' 1 "${run[@]}" : \
  1 "${run[@]}" --init 1.safetensors
differ '--init: rank 0 has ' 1 "${run[@]}" --init 1.safetensors : \
  1 "${run[@]}" --init 2.safetensors

# The weights are equal, but config.json beside them has another number of heads or epsilon.
cp 1.safetensors b/
sed 's/"n_head": 2/"n_head": 4/' config.json > b/config.json
of_init=("$train_gpt" --data text.txt --batch 12 --micro-batch 2 --init)
for flags in '--steps 3 --eval-every 0' --eval-only; do
  read -ra more <<< "$flags"
  differ 'heads (--heads or config.json of --init): rank 0 has 2, rank 1 has 4' \
    1 "${of_init[@]}" 1.safetensors "${more[@]}" : 1 "${of_init[@]}" b/1.safetensors "${more[@]}"
done
sed 's/"layer_norm_epsilon": 1e-05/"layer_norm_epsilon": 1e-06/' config.json > b/config.json
differ 'epsilon (config.json of --init): rank 0 has 1e-05, rank 1 has 1e-06' \
  1 "${of_init[@]}" 1.safetensors --steps 3 : 1 "${of_init[@]}" b/1.safetensors --steps 3

# The environment differs: the number of threads, and the variables that oneDNN reads.
differ '--threads or OMP_NUM_THREADS: rank 0 has 1, rank 1 has 2' 1 "${run[@]}" : \
  1 env OMP_NUM_THREADS=2 "${run[@]}"
differ '--threads or OMP_NUM_THREADS: rank 0 has 1, rank 1 has 2' 1 "${run[@]}" : \
  1 "${run[@]}" --threads 2
if [[ $(uname -m) == x86_64 ]]; then
  differ 'instruction set: rank 0 has ' 1 "${run[@]}" : 1 env ONEDNN_MAX_CPU_ISA=SSE41 "${run[@]}"
fi
differ 'ONEDNN_DEFAULT_FPMATH_MODE: rank 0 has strict, rank 1 has bf16' 1 "${run[@]}" : \
  1 env ONEDNN_DEFAULT_FPMATH_MODE=BF16 "${run[@]}"

# Images differ.
python3 - << 'PYTHON'
import os, struct
for folder, last in (("a", 9), ("c", 8)):
    os.makedirs(f"mnist/{folder}")
    with open(f"mnist/{folder}/t10k-images-idx3-ubyte", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, 20, 4, 4) + bytes(i % 250 for i in range(320)))
    with open(f"mnist/{folder}/t10k-labels-idx1-ubyte", "wb") as file:
        file.write(struct.pack(">II", 0x801, 20) + bytes([i % 10 for i in range(19)] + [last]))
PYTHON
differ '--data: rank 0 has idx: 18 images' 1 "${images[@]}" --data mnist/a : \
  1 "${images[@]}" --data mnist/c
differ '--data: rank 0 has none, rank 1 has a value' 1 "${images[@]}" : \
  1 "${images[@]}" --data mnist/a
differ '--augment: rank 0 has on, rank 1 has off' 1 "${images[@]}" : 1 "${images[@]}" --augment off
differ '--min-bytes: rank 0 has 1KiB, rank 1 has 2KiB' 1 "$TESSERA_BIN/comm_bench" : \
  1 "$TESSERA_BIN/comm_bench" --min-bytes 2KiB

# Accepted differences: a file's path, files that only one rank writes, a number's notation, the way
# in which the number of threads is set, and the number of --workers.
cp text.txt b/text.txt
agree 1 "${run[@]}" --lr 1e-3 --log run.jsonl --save out.safetensors : \
  1 env -u OMP_NUM_THREADS "${run[@]}" --lr 0.001 --threads 1 --data b/text.txt --save none/there
[[ -s out.safetensors && ! -e none ]] || fail "rank 1 wrote the weights"
agree 1 "${images[@]}" --data mnist/a : 1 "${images[@]}" --data mnist/a --workers 2
