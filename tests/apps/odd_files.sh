#!/usr/bin/env bash
# Paths that are not regular files, a file that shrinks or is on a failing disk, a limit on file
# sizes, and too many threads or evaluation batches are each reported in one line, and no program
# hangs.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
run=("$train_gpt" "${tiny[@]}" --data text.txt --steps 1 --eval-every 0)
resnet=("$TESSERA_BIN/train_resnet" --steps 1 --batch 2 --micro-batch 2 --eval-every 0)
mkfifo pipe

# Tests pipes without a reader or writer. If a program waits for a pipe, timeout ends the program
# with an exit code that `expect` does not accept.
refuses() {
  local pattern=$1
  shift
  expect "$pattern" timeout 60 "$@"
}
refuses 'pipe: is not a regular file' "${run[@]/text.txt/pipe}"
for flag in --val-data --init; do
  refuses 'pipe: is not a regular file' "${run[@]}" "$flag" pipe
done
refuses 'pipe: is not a regular file' "${run[@]}" --config pipe
refuses 'pipe: not a regular file, expected a log' "$TESSERA_BIN/report" pipe --out page.html
for flag in --save --trace; do
  refuses 'pipe: cannot be written: it exists and is not a regular file' "${run[@]}" "$flag" pipe
done
refuses 'pipe: cannot be written: it already exists and is neither' "${run[@]}" --log pipe
mkdir gpt cifar
must_work "${run[@]}" --save gpt/model.safetensors
mkfifo gpt/pipe
refuses 'gpt/pipe: is not a regular file' "$generate" gpt/pipe
rm gpt/config.json
mkfifo gpt/config.json
refuses 'config.json: is not a regular file' "$generate" gpt/model.safetensors
refuses 'config.json: is not a regular file' "${run[@]}" --init gpt/model.safetensors
refuses 'pipe: is not a regular file' "$TESSERA_BIN/predict" pipe image.png
head -c 30730 /dev/zero > cifar/data_batch_1.bin
head -c 30730 /dev/zero > cifar/test_batch.bin
mkfifo cifar/batches.meta.txt
refuses 'batches.meta.txt: is not a regular file' "${resnet[@]}" --data cifar
rm cifar/batches.meta.txt cifar/test_batch.bin
mkfifo cifar/test_batch.bin
refuses 'test_batch.bin' "${resnet[@]}" --data cifar

# A disk that fails is not bad input: the exit code is 1, as for a read that fails.
"${CXX:-c++}" -std=c++20 -shared -fPIC -O1 -o faults.so \
  "$TESSERA_SOURCE_DIR/tests/apps/file_faults.cpp" -ldl || fail "no library of faults"
status=0
LD_PRELOAD="$work/faults.so" FAULT_FOLDER="$work/text.txt" FAULT_CALLS=fstat FAULT_AT=1 FAULT=EIO \
  "${run[@]}" > stdout.log 2> stderr.log < /dev/null || status=$?
[[ $status == 1 ]] && grep -q 'text.txt: cannot be read: Input/output error' stderr.log ||
  fail "exit code $status for a failing disk: $(< stderr.log)"

# The log may be a terminal or another device. The log may not be a file that standard output or
# standard error goes to, because the two outputs would overwrite each other.
must_work "${run[@]}" --log /dev/null
expect '--log /dev/stderr is the file to which standard error is redirected' \
  "${run[@]}" --log /dev/stderr
status=0
"${run[@]}" --log both.txt > both.txt 2> stderr.log || status=$?
[[ $status == 2 ]] &&
  grep -q -- '--log both.txt is the file to which standard output is redirected' stderr.log ||
  fail "exit code $status: $(< stderr.log)"

# The programs must refuse so many threads: libgomp keeps data of every thread on the stack, and the
# stack would overflow.
rm gpt/config.json
must_work "${run[@]}" --save gpt/model.safetensors
many_threads() {
  OMP_NUM_THREADS=99999 \
    expect "OMP_NUM_THREADS is '99999', expected a whole number from 1 to 4096" "$@"
}
many_threads "${run[@]}"
many_threads "${resnet[@]}"
many_threads "$generate" gpt/model.safetensors
many_threads "$TESSERA_BIN/zero_plan" --preset nano --ranks 4

expect '--eval-batches is 1073741824, expected at most 1048576' "${run[@]}" --eval-every 1 \
  --eval-batches 1073741824

# A compressed text is not decompressed: train_gpt trains on its bytes, and warns.
printf '\x1f\x8b' | cat - text.txt > text.gz
must_work "${run[@]}" --data text.gz --val-data text.txt
[[ $(grep -c 'text.gz: is compressed by gzip' stderr.log) == 1 ]] || fail "$(< stderr.log)"
must_work "${run[@]}" --val-data text.gz
[[ $(grep -c 'text.gz: is compressed by gzip' stderr.log) == 1 ]] || fail "$(< stderr.log)"

# A write beyond the file size limit raises SIGXFSZ, which by default ends a process without a
# message. The programs ignore the signal and report the error.
status=0
(
  ulimit -f 16
  exec "${run[@]}" --save small.safetensors
) > stdout.log 2> stderr.log < /dev/null || status=$?
[[ $status == 1 ]] && grep -q 'small.safetensors: writing failed: File too large; the weights are' \
  stderr.log || fail "exit code $status: $(< stderr.log)"
[[ -z $(find . -name '*.tmp' -o -name 'small*') ]] || fail "left behind: $(find . -name 'small*')"

# The data is truncated during training: the error names the file and the position, on any rank.
for ranks in 1 3; do
  cp text.txt shrinks.txt
  rm -f run.jsonl
  mpirun -n "$ranks" "$train_gpt" "${tiny[@]}" --data shrinks.txt --steps 1000000 --eval-every 0 \
    --log run.jsonl > output.log 2>&1 < /dev/null &
  job=$!
  until [[ $(grep -c '"type":"step"' run.jsonl 2> /dev/null) -ge 3 ]]; do
    kill -0 $job 2> /dev/null || fail "the job has ended: $(< output.log)"
    sleep 0.1
  done
  truncate -s 4000 shrinks.txt
  status=0
  wait $job || status=$?
  [[ $status == 1 ]] || fail "exit code $status instead of 1: $(< output.log)"
  grep -qE '^rank [0-2], step [0-9]+: shrinks.txt: has become shorter .* there is no byte [0-9]+' \
    output.log || fail "no file and place: $(< output.log)"
done
