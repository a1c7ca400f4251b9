#!/usr/bin/env python3
"""Kills training jobs at random moments, and compares the results with an undisturbed run's.

    bench/kills.py --kills 1000                 with the programs of build/release/bin
    bench/kills.py --kills 20 --seed 3 --bin build/cpu/bin

A run is started again after each kill, until it has trained to its end. Every start draws the
number of ranks, the stage, the size of buckets, and whether checkpoints are asynchronous. None of
these may change the result. SIGKILL goes to a rank, to all ranks or to mpirun, after a random time,
so that kills hit the start, steps, saves and the end.

After every kill `checkpoint verify` must find all checkpoints whole. If there was a checkpoint just
before the kill, there must be one after the kill. The digest of a finished run must equal that of
an undisturbed run. Once the number of kills has reached --kills, no further run is begun.
Prints a JSON line of figures at the end; exits with 1 at the first failed check.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 120
EVERY = 3
MODEL = ["--layers", "2", "--heads", "2", "--width", "16", "--context", "16",
         "--global-batch", "12", "--micro-batch", "2"]


def digest_of(log):
    """Returns the digest of the last step's checkpoint. Exits if the log lacks or repeats a step.

    The digest is read from the manifest of the checkpoint, not from the log, because a kill can
    fall between writing the checkpoint and logging it.
    """
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line["step"] for line in lines if line["type"] == "step"]
    if steps != list(range(1, STEPS + 1)):
        sys.exit(f"{log}: the log has other steps than 1 to {STEPS}: {steps}")
    manifest = log.with_suffix("") / f"step-{STEPS:09d}" / "manifest.json"
    return json.loads(manifest.read_text())["digest"]


def ranks_of(mpirun):
    """Returns the ids of the processes that the process `mpirun` has started."""
    try:
        text = Path(f"/proc/{mpirun}/task/{mpirun}/children").read_text()
    except OSError:
        return []
    return [int(pid) for pid in text.split()]


def checkpoints_in(folder):
    """Returns the paths of the complete checkpoints in a folder, which may be missing."""
    return list(folder.glob("step-*[0-9]")) if folder.exists() else []


def kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
        return True
    except ProcessLookupError:
        return False


class Trial:
    """Starts training runs, one after the other, and kills them at random moments."""

    def __init__(self, arguments, work):
        self.program = str(Path(arguments.bin).resolve() / "train_gpt")
        self.checkpoint = str(Path(arguments.bin).resolve() / "checkpoint")
        self.random = random.Random(arguments.seed)
        self.work = work
        self.data = work / "text.txt"
        self.data.write_text("".join(self.random.choices("abcdefgh \n", k=20000)))
        self.figures = {"kills": 0, "runs": 0, "starts": 0, "of_rank": 0, "of_all": 0,
                        "of_mpirun": 0, "during_a_save": 0, "before_the_first_checkpoint": 0,
                        "resumes": 0, "helped_to_end": 0}
        self.job_seconds = 1.0  # a job's duration, from which the times of kills are drawn

    def command(self, name):
        ranks = self.random.choice([1, 2, 3])
        return ["mpirun", "-n", str(ranks), self.program, "--data", str(self.data), *MODEL,
                "--steps", str(STEPS), "--eval-every", "0", "--threads", "1",
                "--stage", str(self.random.randrange(4)),
                "--bucket-bytes", str(self.random.choice([4096, 16384, 1 << 20])),
                "--checkpoint", str(self.work / name), "--checkpoint-every", str(EVERY),
                "--checkpoint-async", self.random.choice(["on", "off"]),
                "--log", str(self.log_of(name))]

    def log_of(self, name):
        return self.work / f"{name}.jsonl"

    def start(self, name):
        self.figures["starts"] += 1
        return subprocess.Popen(self.command(name), stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def finish(self, name):
        job = self.start(name)
        begin = time.monotonic()
        _, errors = job.communicate(timeout=300)
        if job.returncode != 0:
            sys.exit(f"{name}: exit code {job.returncode}:\n{errors}")
        self.job_seconds = time.monotonic() - begin
        return digest_of(self.log_of(name))

    def strike(self, job, folder):
        """Kills a rank, all ranks or mpirun. Returns False if nothing was left to kill."""
        ranks = ranks_of(job.pid)
        what = self.random.choice(["of_rank", "of_all", "of_mpirun"])
        victims = [job.pid] if what == "of_mpirun" else ranks
        if what == "of_rank" and ranks:
            victims = [self.random.choice(ranks)]
        saving = any(folder.glob("*.partial")) if folder.exists() else False
        if job.poll() is not None or not any([kill(pid) for pid in victims]):
            return False
        self.figures["kills"] += 1
        self.figures[what] += 1
        self.figures["during_a_save"] += saving
        return True

    def end_of(self, job, name):
        """Waits until no process of a job is left. Returns the standard error of the job.

        If processes are left after 20 seconds, counts that in `helped_to_end`, prints their kernel
        stacks and kills them. Other tests check that jobs end by themselves (tests/hostile).
        """
        patience = 20  # seconds
        deadline = time.monotonic() + patience
        helped = False
        while (ranks := stragglers(self.program, self.log_of(name))) or job.poll() is None:
            if time.monotonic() > deadline:
                self.figures["helped_to_end"] += not helped
                helped = True
                for pid in [*ranks, job.pid]:
                    state = Path(f"/proc/{pid}/stack")
                    print(pid, state.read_text() if state.exists() else "", file=sys.stderr)
                    kill(pid)
            time.sleep(0.05)
        return job.communicate(timeout=120)[1]

    def check_whole(self, folder, had):
        """Verifies all checkpoints of a folder. If `had` is true, there must be at least one."""
        if not checkpoints_in(folder):
            if had:
                sys.exit(f"{folder}: it had checkpoints, and has none after a kill")
            return
        verified = subprocess.run([self.checkpoint, "verify", str(folder)], capture_output=True,
                                  text=True, check=False)
        if verified.returncode != 0:
            sys.exit(f"{folder}: {verified.stdout}{verified.stderr}")

    def run(self, name, expected, most_kills):
        folder = self.work / name
        for _ in range(most_kills):
            had = checkpoints_in(folder)
            job = self.start(name)
            try:
                job.wait(timeout=self.random.uniform(0.02, 1.2 * self.job_seconds))
            except subprocess.TimeoutExpired:
                had = checkpoints_in(folder)  # the job may have written some since its start
                if self.strike(job, folder) and not had:
                    self.figures["before_the_first_checkpoint"] += 1
            errors = self.end_of(job, name)
            self.check_whole(folder, bool(had))
            self.figures["resumes"] += "going on from" in errors
            if job.returncode == 0:
                break
            if job.returncode in (1, 2):
                sys.exit(f"{name}: exit code {job.returncode}:\n{errors}")
        found = self.finish(name) if job.returncode != 0 else digest_of(self.log_of(name))
        if found != expected:
            sys.exit(f"{name}: digest {found}, expected {expected}")
        self.figures["runs"] += 1
        shutil.rmtree(folder)


def stragglers(program, log):
    """Returns the process ids of the ranks that are still running and write to `log`.

    Compares the whole path of the log, because logs of a concurrent kills.py process have the same
    file names in another folder.
    """
    found = subprocess.run(["pgrep", "-f", f"^{re.escape(program)} .* {re.escape(str(log))}$"],
                           capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bin", default="build/release/bin")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trial = Trial(arguments, Path(folder))
        expected = trial.finish("untouched")
        number = 0
        while trial.figures["kills"] < arguments.kills:
            number += 1
            trial.run(f"run{number}", expected, most_kills=12)
            if number % 50 == 0:
                print(json.dumps(trial.figures), file=sys.stderr, flush=True)
        if arguments.kills >= 20 and trial.figures["resumes"] == 0:
            sys.exit("no run has gone on from a checkpoint")
        print(json.dumps({"digest": expected, "seed": arguments.seed, **trial.figures}))


if __name__ == "__main__":
    main()
