#!/usr/bin/env bash
# ctest: TIMEOUT 400 PROCESSORS 1
# Jobs that are killed at 20 random moments resume with the bits of an uninterrupted job. If two
# bench/kills.py run at the same time, neither may count or kill ranks of the other.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
PYTHONPATH=$TESSERA_SOURCE_DIR/bench python3 -c '
import os, subprocess, sys
import kills
program, log = "/bin of-tests/train_gpt", f"{os.getcwd()}/run1.jsonl"
rank = subprocess.Popen([program, "-c", "input()", "--log", log],
                        executable=sys.executable, stdin=subprocess.PIPE)
try:
    assert kills.stragglers(program, log) == [rank.pid]
    assert kills.stragglers(program, "/other/run1.jsonl") == []
finally:
    rank.kill()'
python3 "$TESSERA_SOURCE_DIR/bench/kills.py" --kills 20 --bin "$TESSERA_BIN"
