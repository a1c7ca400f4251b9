#!/usr/bin/env bash
# ctest: TIMEOUT 400 PROCESSORS 1
# Jobs that are killed at 20 random moments resume with the bits of an uninterrupted job. If two
# bench/kills.py run at the same time, neither may count or kill ranks of the other. bench/kills.py
# notices checkpoints that a job has written since its start.
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
# The jobs of this trial write a first checkpoint and wait to be killed. Their checkpoint is lost
# after the kill if `loses` is true.
PYTHONPATH=$TESSERA_SOURCE_DIR/bench python3 -c '
import pathlib, shutil, subprocess, types
import kills

class Trial(kills.Trial):
    def start(self, name):
        (self.work / name / "step-000000003").mkdir(parents=True)
        return subprocess.Popen(["sleep", "60"], stderr=subprocess.PIPE, text=True)
    def end_of(self, job, name):
        if self.loses:
            shutil.rmtree(self.work / name)
        return job.communicate()[1]
    def finish(self, name):
        return "digest"

trial = Trial(types.SimpleNamespace(bin="/bin", seed=1), pathlib.Path.cwd())
trial.random = types.SimpleNamespace(uniform=lambda low, high: low, choice=lambda _: "of_mpirun")
trial.checkpoint = "true"  # verifies every checkpoint
trial.loses = False
trial.run("run", "digest", most_kills=1)
assert trial.figures["kills"] == 1, trial.figures
assert trial.figures["before_the_first_checkpoint"] == 0, trial.figures
trial.loses = True
try:
    trial.run("run", "digest", most_kills=1)
    raise AssertionError("it misses the loss of all checkpoints")
except SystemExit as error:
    assert "has none after a kill" in str(error), error'
python3 "$TESSERA_SOURCE_DIR/bench/kills.py" --kills 20 --bin "$TESSERA_BIN"
