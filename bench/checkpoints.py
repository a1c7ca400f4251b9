#!/usr/bin/env python3
"""Time checkpoints beside PyTorch's, and what they add to training.

    bench/checkpoints.py --python peer2/bin/python               # all questions below
    bench/checkpoints.py --python peer2/bin/python memory disk   # only these two

    memory     save and load in --memory, a tmpfs, against torch.distributed.checkpoint, torch.save
    disk       the same on --disk; also the save against dd with 2 writers and as many bytes in all
    training   what an asynchronous checkpoint every 20 steps adds to a step of micro on 2 ranks
    restart    time from a kill of all ranks to the next finished step of nano
    relaunch   time from the kill of one of three ranks to the next step, which two new ranks finish

memory and disk measure blocking saves of GPT-2 124M with AdamW's moments by 2 ranks. On --disk,
Tessera, PyTorch and dd flush their files. Each question prints rows of a table. The programs that a
row compares run alternately, except dd, which runs last. Rows show medians.
"""
import argparse
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from compare import BIN, PEER_LIBRARY, PEERS, alternate, environment, last_json, row

RANKS = 2
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def ours(args, folder, **options):
    flags = [f"--{name}={value}" for name, value in options.items()]
    return last_json(["mpirun", "-n", RANKS, args.bin / "bench_checkpoint", "--preset", "gpt2",
                      "--folder", folder, *flags])


def peer(args, folder, *options):
    return last_json([args.python, PEERS / "checkpoint.py", "--folder", folder, *options],
                     **PEER_LIBRARY)


def middle(results, key, skip=1):
    """Return the median over all rounds except each process's first round, a warm-up."""
    return statistics.median(value for result in results for value in result[key][skip:])


def compare_saves(args, where, name, *flush):
    folder = pathlib.Path(where) / "tessera-checkpoints"
    folders = [folder / part for part in ("ours", "dcp", "torch.save")]
    try:
        mine, dcp, single = alternate(
            args.rounds,
            # Stage 0, because every rank of the peers holds and loads the whole state.
            lambda: ours(args, folders[0], rounds=4, stage=0),
            lambda: peer(args, folders[1], "--rounds", "4", *flush),
            lambda: peer(args, folders[2], "--rounds", "4", "--way", "torch.save", *flush))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for key, what in (("save_ms", "save"), ("load_ms", "verify and load")):
        a, b, c = (middle(results, key) for results in (mine, dcp, single))
        row(f"{what}, GPT-2 124M with moments, 2 ranks, {name}",
            f"{a:.0f} ms; DCP {b:.0f} ms, torch.save {c:.0f} ms", f"{min(b, c) / a:.2f} x",
            ">= 1.5" if key == "save_ms" and not flush else "",
            f"PyTorch {dcp[0]['torch']}, {mine[0]['bytes'] / 1e9:.2f} GB")
    return middle(mine, "save_ms"), mine[0]["bytes"]


def memory(args):
    compare_saves(args, args.memory, "tmpfs")


def dd_ms(folder, total):
    """Time dd with one flushing writer per rank. The source, /dev/zero, needs no disk."""
    each = total // RANKS // 2**20
    begin = time.perf_counter()
    writers = [subprocess.Popen(["dd", "if=/dev/zero", f"of={folder}/{i}", "bs=1M",
                                 f"count={each}", "conv=fsync"], stderr=subprocess.DEVNULL)
               for i in range(RANKS)]
    for writer in writers:
        writer.wait()
    return (time.perf_counter() - begin) * 1e3


def disk(args):
    mine, total = compare_saves(args, args.disk, "disk, flushed", "--fsync")
    times = []
    for _ in range(args.rounds + 2):
        with tempfile.TemporaryDirectory(dir=args.disk) as folder:
            times.append(dd_ms(folder, total))
    limit = statistics.median(times[1:])
    row("the same against dd, 2 writers", f"{mine:.0f} ms; dd {limit:.0f} ms",
        f"{limit / mine:.2f} x", ">= 0.85")


def train_gpt(args, folder, log, *flags):
    return ["mpirun", "-n", str(RANKS), str(args.bin / "train_gpt"), "--data", args.data,
            "--threads", "1", "--log", str(log), *flags]


def mean_step_ms(args, *flags):
    """Time 40 steps from outside. The log's step_ms does not have the time between two steps, in
    which a checkpoint copies the state and starts its thread."""
    with tempfile.TemporaryDirectory(dir=args.disk) as folder:
        log = pathlib.Path(folder) / "log.jsonl"
        given = [flag.replace("FOLDER", folder) for flag in flags]
        job = subprocess.Popen(train_gpt(args, folder, log, "--preset", "micro", "--steps", "45",
                                         "--eval-every", "0", "--sample", "0", *given), **QUIET,
                               env=environment(1))
        wait_for_steps(job, log, 4)
        begin = time.perf_counter()
        wait_for_steps(job, log, 44)
        ms = (time.perf_counter() - begin) * 1e3 / 40
        if job.wait() != 0:
            sys.exit(f"train_gpt failed with exit code {job.returncode}")
    return {"ms": ms}


def training(args):
    without, with_them = alternate(
        args.rounds, lambda: mean_step_ms(args),
        lambda: mean_step_ms(args, "--checkpoint", "FOLDER/run", "--checkpoint-every", "20"))
    a = statistics.median(result["ms"] for result in without)
    b = statistics.median(result["ms"] for result in with_them)
    row("a step of micro, 2 ranks, with an asynchronous checkpoint every 20",
        f"{b:.1f} ms, without {a:.1f} ms", f"{(b / a - 1) * 100:+.1f} %", "<= 2 %")


def wait_until(job, log, holds):
    """Wait until holds(text of the log). Stop the benchmark if the job has ended before."""
    while not (log.exists() and holds(log.read_text())):
        if job.poll() is not None and not (log.exists() and holds(log.read_text())):
            sys.exit(f"{job.args[0]} ended too early, with exit code {job.returncode}")
        time.sleep(0.005)


def wait_for_steps(job, log, count):
    wait_until(job, log, lambda text: text.count('"type":"step"') >= count)


def wait_for_a_step_after_resume(job, log):
    wait_until(job, log, lambda text: '"type":"resume"' in text)
    before = log.read_text().split('"type":"resume"')[0].count('"type":"step"')
    wait_for_steps(job, log, before + 1)


def kill_ranks(folder):
    subprocess.run(["pkill", "-KILL", "-f", "--", f"--checkpoint {folder}/run"], check=False)


def restart(args):
    times = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(dir=args.disk) as folder:
            log = pathlib.Path(folder) / "log.jsonl"
            command = train_gpt(args, folder, log, "--preset", "nano", "--steps", "100000",
                                "--eval-every", "0", "--checkpoint", f"{folder}/run",
                                "--checkpoint-every", "10")
            start = {"env": environment(1), "start_new_session": True, **QUIET}
            job = subprocess.Popen(command, **start)
            wait_for_steps(job, log, 35)
            begin = time.perf_counter()
            os.killpg(job.pid, signal.SIGKILL)
            kill_ranks(folder)
            job.wait()
            job = subprocess.Popen(command, **start)
            wait_for_a_step_after_resume(job, log)
            times.append(time.perf_counter() - begin)
            os.killpg(job.pid, signal.SIGKILL)
            kill_ranks(folder)
            job.wait()
    row("from a kill to the next finished step, nano, 2 ranks",
        f"{statistics.median(times):.2f} s", "", "< 3 s")


def relaunch(args):
    """Time how long relaunch takes to go on with two ranks after one of three is killed."""
    times = []
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory(dir=args.disk) as folder:
            log = pathlib.Path(folder) / "log.jsonl"
            command = train_gpt(args, folder, log, "--preset", "nano", "--steps", "100000",
                                "--eval-every", "0", "--checkpoint", f"{folder}/run",
                                "--checkpoint-every", "10")
            program = command[command.index("-n") + 2:]
            job = subprocess.Popen([args.bin / "relaunch", "-n", "3", "--", *program],
                                   env=environment(1), **QUIET)
            wait_for_steps(job, log, 35)
            ranks = subprocess.run(["pgrep", "-f", f"^{program[0]} .*{folder}"],
                                   capture_output=True, text=True, check=True).stdout.split()
            begin = time.perf_counter()
            os.kill(int(ranks[1]), signal.SIGKILL)
            wait_for_a_step_after_resume(job, log)
            times.append(time.perf_counter() - begin)
            job.send_signal(signal.SIGTERM)
            job.wait()
    row("from the kill of one rank of three to the next finished step of two, relaunch, nano",
        f"{statistics.median(times):.2f} s", "", "< 3 s")


QUESTIONS = {"memory": memory, "disk": disk, "training": training, "restart": restart,
             "relaunch": relaunch}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("questions", nargs="*", metavar="QUESTION",
                        help=f"one of {', '.join(QUESTIONS)} (default: all)")
    parser.add_argument("--python", default="python3", help="an interpreter with PyTorch")
    parser.add_argument("--bin", type=pathlib.Path, default=BIN)
    parser.add_argument("--memory", default="/dev/shm", help="a folder in memory, for checkpoints")
    parser.add_argument("--disk", default="/var/tmp", help="a folder on a disk, for checkpoints")
    parser.add_argument("--data", default=str(pathlib.Path(__file__).resolve()),
                        help="a text to train on")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for name in args.questions:
        if name not in QUESTIONS:
            parser.error(f"there is no question {name}, expected one of {', '.join(QUESTIONS)}")
    print("| what | measured | ratio | bar | |\n| --- | --- | --- | --- | --- |", flush=True)
    for name in args.questions or QUESTIONS:
        QUESTIONS[name](args)


if __name__ == "__main__":
    main()
