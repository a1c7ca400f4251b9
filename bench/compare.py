#!/usr/bin/env python3
"""Run Tessera's benchmarks beside their peers and limits, in turn, and print ratios of medians.

    bench/compare.py                       # every question; about half an hour
    bench/compare.py gpt-micro-1 adamw     # some of them
    bench/compare.py --list

Ours and the peer run alternately, --rounds times each; a row is the median over rounds of what each
process printed as its own median. The peer is PyTorch on the CPU (bench/peers/README.md says how to
install it; --python names its interpreter). Both begin with the same weights and the same batches,
and the row is refused where their losses differ.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
PEERS = ROOT / "bench/peers"
OPENBLAS = pathlib.Path("/usr/lib/x86_64-linux-gnu/openblas-openmp")
PEER_LIBRARY = {"LD_LIBRARY_PATH": str(OPENBLAS)} if OPENBLAS.exists() else {}
SIZES = {  # layers, heads, width, context, batch, vocab
    "nano": (4, 4, 128, 64, 12, 256),
    "micro": (6, 6, 384, 256, 12, 256),
    "gpt2": (12, 12, 768, 256, 1, 50257),
}
STEPS = {"nano": (60, 10), "micro": (4, 1), "gpt2": (4, 1)}  # timed, warm-up


def environment(threads):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    for line in (ROOT / "scripts/mpi.env").read_text().splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("=", 1)
            env[name] = value
    # Either makes a PyTorch that uses OpenBLAS several times slower, and the comparison void.
    env.pop("OPENBLAS_CORETYPE", None)
    env.pop("OPENBLAS_L2_SIZE", None)
    return env


def last_json(command, threads=1, **more):
    env = dict(environment(threads), **more)
    done = subprocess.run([str(part) for part in command], env=env, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def alternate(rounds, *runs):
    results = [[] for _ in runs]
    for _ in range(rounds):
        for run, result in zip(runs, results):
            result.append(run())
    return results


def median(results, key):
    return statistics.median(result[key] for result in results)


def ours(preset, threads=1, ranks=1, **options):
    steps, warmup = STEPS[preset]
    command = [BIN / "bench_gpt_step", "--preset", preset, "--threads", threads,
               "--steps", steps, "--warmup", warmup]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), value]
    return last_json((["mpirun", "-n", ranks] if ranks > 1 else []) + command, threads)


def peer(args, preset, threads, *options):
    steps, warmup = STEPS[preset]
    return last_json([args.python, PEERS / "gpt_step.py", "--preset", preset, "--threads", threads,
                      "--steps", steps, "--warmup", warmup, "--json", *options],
                     threads, **PEER_LIBRARY)


def row(name, what, value, bar, note=""):
    print(f"| {name} | {what} | {value} | {bar} | {note} |", flush=True)


def gpt_step(args, preset, threads, bar, malloc="keep"):
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / "model.safetensors"
        subprocess.run([args.python, PEERS / "gpt_step.py", "--preset", preset,
                        "--write-weights", weights],
                       env=dict(environment(1), **PEER_LIBRARY), check=True)
        mine, theirs = alternate(args.rounds,
                                 lambda: ours(preset, threads, weights=weights),
                                 lambda: peer(args, preset, threads, "--weights", weights,
                                              "--malloc", malloc))
    for a, b in zip(mine[0]["losses"], theirs[0]["losses"]):
        if abs(a - b) > 2e-4 * abs(b):
            sys.exit(f"{preset}: losses differ: {mine[0]['losses']}, {theirs[0]['losses']}")
    a, b = median(mine, "median_ms"), median(theirs, "median_ms")
    name = f"{preset}, {threads} thread(s)" + (", plain malloc" if malloc == "plain" else "")
    row(f"GPT step, {name}", f"{a:.1f} ms, PyTorch {b:.1f} ms",
        f"{b / a:.2f} x", bar)
    memory = [(m["vm_hwm_kib"] - m["vm_hwm_start_kib"]) / 1024 for m in mine]
    peers = [(t["vm_hwm_kib"] - t["vm_hwm_import_kib"]) / 1024 for t in theirs]
    row(f"peak memory, {name}",
        f"{statistics.median(memory):.0f} MiB, PyTorch {statistics.median(peers):.0f} MiB",
        f"{statistics.median(memory) / statistics.median(peers):.2f} x", "<= 0.6 (micro)")


def ceiling(args, preset, threads):
    names = ("--layers", "--heads", "--width", "--context", "--batch", "--vocab")
    sizes = [part for pair in zip(names, SIZES[preset]) for part in pair]
    repeats = STEPS[preset][0]
    mine, limit = alternate(
        args.rounds, lambda: ours(preset, threads),
        lambda: last_json([BIN / "bench_matmul_ceiling", *sizes, "--threads", threads,
                           "--repeats", repeats], threads))
    a, b = median(mine, "median_ms"), median(limit, "total_ms")
    row(f"step against its matrix products, {preset}, {threads} thread(s)",
        f"{a:.1f} ms, products {b:.1f} ms", f"{a / b:.2f} x", "<= 1.25")


def adamw(args, threads):
    result = alternate(args.rounds, lambda: last_json(
        [BIN / "bench_adamw", "--threads", threads], threads))[0]
    row(f"AdamW, 124 M parameters, {threads} thread(s)",
        f"{median(result, 'adamw_ms'):.1f} ms, {median(result, 'adamw_gb_per_s'):.1f} GB/s, "
        f"best copy {median(result, 'copy_gb_per_s'):.1f} GB/s",
        f"{median(result, 'ratio'):.2f}", ">= 0.85")


def stages(args):
    two, zero = alternate(args.rounds, lambda: ours("micro", 1, 2, stage=2, batch=6),
                          lambda: ours("micro", 1, 2, stage=0, batch=6))
    a, b = median(two, "median_ms"), median(zero, "median_ms")
    row("ZeRO-2 against stage 0, micro, 2 ranks", f"{a:.1f} ms, {b:.1f} ms", f"{a / b:.3f} x",
        "<= 1.05")


def scaling(args):
    two, one = alternate(args.rounds, lambda: ours("micro", 1, 2), lambda: ours("micro", 1, 1))
    a, b = median(two, "tokens_per_s"), median(one, "tokens_per_s")
    row("tokens/s, 2 ranks against 1, micro, 1 thread each", f"{a:.0f}, {b:.0f}",
        f"{a / b:.2f} x", ">= 1.8")


def start(args):
    def run():
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            subprocess.run(["mpirun", "-n", "2", BIN / "train_gpt", "--data", ROOT / "README.md",
                            "--preset", "nano", "--steps", "1", "--eval-every", "0",
                            "--context", "64", "--log", f"{folder}/log"],
                           env=environment(1), check=True, stdin=subprocess.DEVNULL,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            return {"s": time.monotonic() - begin}
    result = alternate(max(args.rounds, 5), run)[0]
    row("whole run of one step, nano, 2 ranks", f"{median(result, 's'):.2f} s", "", "< 1 s",
        "start to first step, and the end of the job")


def communication(args):
    result = last_json(["mpirun", "-n", "2", BIN / "bench_communication"])
    row("communication, 2 ranks, 128 MB", json.dumps(result), "", "")


QUESTIONS = {
    **{f"gpt-{preset}-{threads}": (lambda a, p=preset, t=threads, b=bar: gpt_step(a, p, t, b))
       for preset, threads, bar in (("nano", 1, ">= 1.6"), ("nano", 2, ">= 1.6"),
                                    ("micro", 1, ">= 1.3"), ("micro", 2, ">= 1.3"),
                                    ("gpt2", 1, ">= 1.5"), ("gpt2", 2, ">= 1.5"))},
    # PyTorch as it is installed: without the peer's setting that keeps freed memory.
    "gpt-gpt2-1-plain": lambda a: gpt_step(a, "gpt2", 1, ">= 1.5", "plain"),
    "gpt-gpt2-2-plain": lambda a: gpt_step(a, "gpt2", 2, ">= 1.5", "plain"),
    **{f"ceiling-{preset}-{threads}": (lambda a, p=preset, t=threads: ceiling(a, p, t))
       for preset in ("micro", "gpt2") for threads in (1, 2)},
    "adamw": lambda a: adamw(a, 1),
    "stages": stages,
    "scaling": scaling,
    "start": start,
    "communication": communication,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", metavar="QUESTION")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter with torch")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    unknown = set(args.questions) - set(QUESTIONS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; --list shows them")
    if args.list:
        return print("\n".join(QUESTIONS))
    if not shutil.which("mpirun"):
        parser.error("mpirun is not installed; ./run.sh installs it")
    print("| what | measured | ratio | bar | |\n| --- | --- | --- | --- | --- |")
    for name in args.questions or QUESTIONS:
        QUESTIONS[name](args)


if __name__ == "__main__":
    main()
