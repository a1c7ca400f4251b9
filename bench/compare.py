#!/usr/bin/env python3
"""Run Tessera's benchmarks in turn with what they are compared with; print ratios of medians.

    bench/compare.py                       # every question; more than an hour
    bench/compare.py gpt-micro-1 adamw     # some of them
    bench/compare.py --list

A question compares runs of Tessera with PyTorch (the peer), with a limit such as the time of the
matrix products alone, or with each other. Its programs run alternately, --rounds times each (in the
question `start` at least five times, in `communication` once). Times and memory in a row are
medians over the rounds.

The peer runs on the CPU: bench/peers/README.md says how to install it, and --python names its
interpreter. The question `sharded-peers` compares stages 2 and 3 only if PyTorch has fully_shard.
If the peer trains, both sides begin with the same weights and read the same batches, and the script
stops if their losses differ by more than a tolerance.
"""
import argparse
import contextlib
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
# The folder of OpenBLAS precedes the folders that the caller's LD_LIBRARY_PATH names.
PEER_LIBRARY = {"LD_LIBRARY_PATH": ":".join(filter(None, (
    str(OPENBLAS), os.environ.get("LD_LIBRARY_PATH"))))} if OPENBLAS.exists() else {}
SIZES = {  # layers, heads, width, context, batch, vocab
    "nano": (4, 4, 128, 64, 12, 256),
    "micro": (6, 6, 384, 256, 12, 256),
    "gpt2": (12, 12, 768, 256, 1, 50257),
}
STEPS = {"nano": (60, 10), "micro": (4, 1), "gpt2": (4, 1)}  # timed, warm-up
BF16_WAYS = ("autocast", "master")  # values of --bf16 in gpt_step.py
STRATEGIES = ("ddp", "zero1", "fsdp-grad-op", "fsdp-full")  # correspond to stages 0 to 3


def environment(threads):
    env = dict(os.environ, OMP_NUM_THREADS=str(threads))
    for line in (ROOT / "scripts/mpi.env").read_text().splitlines():
        if line and not line.startswith("#"):
            name, value = line.split("=", 1)
            env[name] = value
    # Each of these variables makes a PyTorch that uses OpenBLAS several times slower. A comparison
    # with such a slow PyTorch would be meaningless.
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
        command += ["--" + name.replace("_", "-")] + ([] if value is True else [value])
    return last_json((["mpirun", "-n", ranks] if ranks > 1 else []) + command, threads)


def torch_run(args, script, preset, threads, *options):
    steps, warmup = STEPS[preset]
    return last_json([args.python, PEERS / script, "--preset", preset, "--threads", threads,
                      "--steps", steps, "--warmup", warmup, "--json", *options],
                     threads, **PEER_LIBRARY)


def peer(args, preset, threads, *options):
    return torch_run(args, "gpt_step.py", preset, threads, *options)


def sharded_peer(args, preset, *options):
    return torch_run(args, "sharded_step.py", preset, 1, *options)


@contextlib.contextmanager
def initial_weights(args, preset):
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / "model.safetensors"
        subprocess.run([args.python, PEERS / "gpt_step.py", "--preset", preset,
                        "--write-weights", weights],
                       env=dict(environment(1), **PEER_LIBRARY), check=True)
        yield weights


def row(name, what, value, bar, note=""):
    print(f"| {name} | {what} | {value} | {bar} | {note} |", flush=True)


def require_same_losses(what, a, b, tolerance):
    a, b = a[0]["losses"], b[0]["losses"]
    # `not all(... <= ...)` also refuses NaN, because every comparison with NaN is false.
    if len(a) != len(b) or not all(abs(x - y) <= tolerance * abs(y) for x, y in zip(a, b)):
        sys.exit(f"{what}: losses differ: {a}, {b}")


def memory_mib(results):
    """Return the median of the peak memory that training adds.

    Our baseline is the peak at the start of the process; PyTorch's is the peak after its import.
    """
    return statistics.median(
        (result["vm_hwm_kib"] - result.get("vm_hwm_start_kib", result.get("vm_hwm_import_kib")))
        / 1024 for result in results)


def compare_memory(name, mine, theirs, bar=""):
    a, b = memory_mib(mine), memory_mib(theirs)
    row(f"peak memory, {name}", f"{a:.0f} MiB, PyTorch {b:.0f} MiB", f"{a / b:.2f} x", bar)


def gpt_step(args, preset, threads, bar, malloc="keep"):
    with initial_weights(args, preset) as weights:
        mine, theirs = alternate(args.rounds,
                                 lambda: ours(preset, threads, weights=weights),
                                 lambda: peer(args, preset, threads, "--weights", weights,
                                              "--malloc", malloc))
    require_same_losses(preset, mine, theirs, 2e-4)
    a, b = median(mine, "median_ms"), median(theirs, "median_ms")
    name = f"{preset}, {threads} thread(s)" + (", plain malloc" if malloc == "plain" else "")
    row(f"GPT step, {name}", f"{a:.1f} ms, PyTorch {b:.1f} ms",
        f"{b / a:.2f} x", bar, f"PyTorch {theirs[0]['torch']}")
    compare_memory(name, mine, theirs, "<= 0.6 (micro)")


def bf16_step(args, preset, threads):
    """Compare our bf16 step with our fp32 step, and with the faster of PyTorch's BF16_WAYS."""
    with initial_weights(args, preset) as weights:
        mine, fp32, *peers = alternate(
            args.rounds,
            lambda: ours(preset, threads, weights=weights, precision="bf16"),
            lambda: ours(preset, threads, weights=weights, precision="fp32"),
            *(lambda way=way: peer(args, preset, threads, "--weights", weights, "--dtype", "bf16",
                                   "--bf16", way) for way in BF16_WAYS))
    theirs = min(peers, key=lambda results: median(results, "median_ms"))
    ways = ", ".join(f"{way} {median(results, 'median_ms'):.1f} ms"
                     for way, results in zip(BF16_WAYS, peers))
    name = f"{preset}, {threads} thread(s)"
    # The tolerance, 2**-8, is bf16's largest relative rounding error. PyTorch's two ways differ by
    # a quarter of the tolerance after 5 steps of micro.
    require_same_losses(f"{name}, bf16 and fp32", mine, fp32, 2**-8)
    for way, results in zip(BF16_WAYS, peers):
        require_same_losses(f"{name}, bf16, {way}", mine, results, 2**-8)
    a, b, c = (median(results, "median_ms") for results in (mine, fp32, theirs))
    row(f"GPT step in bf16 against fp32, {name}", f"{a:.1f} ms, fp32 {b:.1f} ms", f"{b / a:.2f} x",
        ">= 1.6")
    row(f"GPT step in bf16, {name}", f"{a:.1f} ms, PyTorch {c:.1f} ms", f"{c / a:.2f} x", ">= 1.4",
        f"PyTorch {theirs[0]['torch']}: {ways}")
    compare_memory(f"bf16, {name}", mine, theirs)


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


def stages(args, high, low, bar):
    results = alternate(args.rounds, lambda: ours("micro", 1, 2, stage=high, batch=6),
                        lambda: ours("micro", 1, 2, stage=low, batch=6))
    a, b = (median(result, "median_ms") for result in results)
    row(f"stage {high} against stage {low}, micro, 2 ranks", f"{a:.1f} ms, {b:.1f} ms",
        f"{a / b:.3f} x", bar)


def recompute(args):
    again, kept = alternate(args.rounds, lambda: ours("micro", recompute=True),
                            lambda: ours("micro"))
    if again[0]["losses"] != kept[0]["losses"]:
        sys.exit(f"recompute changes losses: {again[0]['losses']}, {kept[0]['losses']}")
    a, b = median(again, "median_ms"), median(kept, "median_ms")
    row("recompute, micro, 1 thread", f"{a:.1f} ms, without {b:.1f} ms", f"{a / b:.2f} x",
        "<= 1.40")
    a, b = (median(result, "activation_peak_bytes") / 2**20 for result in (again, kept))
    row("activations with recompute, micro", f"{a:.0f} MiB, without {b:.0f} MiB", f"{a / b:.2f} x",
        "<= 0.5")


def sharded_peers(args):
    """Compare each stage's time and memory with PyTorch's. Show which runs have equal losses."""
    has_fsdp = subprocess.run(
        [args.python, "-c", "from torch.distributed.fsdp import fully_shard"],
        env=dict(environment(1), **PEER_LIBRARY), stderr=subprocess.DEVNULL).returncode == 0
    strategies = STRATEGIES if has_fsdp else STRATEGIES[:2]
    with initial_weights(args, "micro") as weights:
        for dtype in ("fp32", "bf16"):
            for stage, strategy in enumerate(strategies):
                sharded_step(args, weights, dtype, stage, strategy)
    with initial_weights(args, "nano") as weights:
        for dtype in ("fp32", "bf16"):
            row(f"losses, stages 0 to 3, {dtype}, nano", *distinct_losses({
                f"stage {stage}": lambda ranks, stage=stage: ours(
                    "nano", 1, ranks, stage=stage, batch=3, micro_batches=4, weights=weights,
                    precision=dtype) for stage in range(4)}))
            row(f"losses, PyTorch's strategies, {dtype}, nano", *distinct_losses({
                strategy: lambda ranks, strategy=strategy: sharded_peer(
                    args, "nano", "--strategy", strategy, "--ranks", ranks, "--batch", 3,
                    "--micro-batches", 4, "--weights", weights, "--dtype", dtype)
                for strategy in strategies}))


def sharded_step(args, weights, dtype, stage, strategy):
    mine, theirs = alternate(
        args.rounds,
        lambda: ours("micro", 1, 2, stage=stage, batch=6, weights=weights, precision=dtype),
        lambda: sharded_peer(args, "micro", "--strategy", strategy, "--batch", 6,
                             "--weights", weights, "--dtype", dtype))
    name = f"stage {stage} ({strategy}), {dtype}, micro, 2 ranks"
    require_same_losses(name, mine, theirs, 2e-4 if dtype == "fp32" else 2**-8)
    a, b = median(mine, "median_ms"), median(theirs, "median_ms")
    row(name, f"{a:.1f} ms, PyTorch {b:.1f} ms", f"{b / a:.2f} x", "",
        f"PyTorch {theirs[0]['torch']}")
    compare_memory(f"rank 0, {name}", mine, theirs)


def distinct_losses(runs):
    """Do each run on 1, 2 and 4 ranks; equal sequences of losses get the same letter."""
    letters, listed = {}, []
    for name, run in runs.items():
        seen = [letters.setdefault(tuple(run(ranks)["losses"]), chr(ord("A") + len(letters)))
                for ranks in (1, 2, 4)]
        listed.append(f"{name} {' '.join(seen)}")
    return ("on 1, 2, 4 ranks: " + "; ".join(listed), f"{len(letters)} different", "")


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


def resnet_step(args, model, batch, size, threads, dtype, bar, steps=8):
    sizes = ["--model", model, "--batch", batch, "--size", size, "--threads", threads,
             "--steps", steps, "--warmup", 2]
    script = [args.python, PEERS / "resnet_step.py", *sizes]
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / "init.safetensors"
        subprocess.run([str(part) for part in [*script, "--write-weights", weights]],
                       env=dict(environment(1), **PEER_LIBRARY), check=True)
        mine, theirs = alternate(
            args.rounds,
            lambda: last_json([BIN / "bench_resnet_step", *sizes, "--precision", dtype,
                               "--weights", weights], threads),
            lambda: last_json([*script, "--dtype", dtype, "--weights", weights], threads,
                              **PEER_LIBRARY))
    require_same_losses(model, mine, theirs, 2e-2 if dtype == "fp32" else 5e-2)
    a, b = median(mine, "median_ms"), median(theirs, "median_ms")
    row(f"{model}, B={batch}, {size}x{size}, {dtype}, {threads} thread(s)",
        f"{a:.1f} ms, PyTorch {b:.1f} ms", f"{b / a:.2f} x", bar, f"PyTorch {theirs[0]['torch']}")


QUESTIONS = {
    **{f"gpt-{preset}-{threads}": (lambda a, p=preset, t=threads, b=bar: gpt_step(a, p, t, b))
       for preset, threads, bar in (("nano", 1, ">= 1.6"), ("nano", 2, ">= 1.6"),
                                    ("micro", 1, ">= 1.3"), ("micro", 2, ">= 1.3"),
                                    ("gpt2", 1, ">= 1.5"), ("gpt2", 2, ">= 1.5"))},
    # In these two, PyTorch uses malloc as installed, which may return freed memory to the system.
    "gpt-gpt2-1-plain": lambda a: gpt_step(a, "gpt2", 1, ">= 1.5", "plain"),
    "gpt-gpt2-2-plain": lambda a: gpt_step(a, "gpt2", 2, ">= 1.5", "plain"),
    **{f"bf16-{preset}-{threads}": (lambda a, p=preset, t=threads: bf16_step(a, p, t))
       for preset in ("micro", "gpt2") for threads in (1, 2)},
    **{f"ceiling-{preset}-{threads}": (lambda a, p=preset, t=threads: ceiling(a, p, t))
       for preset in ("micro", "gpt2") for threads in (1, 2)},
    "adamw": lambda a: adamw(a, 1),
    "stages": lambda a: stages(a, 2, 0, "<= 1.05"),
    "stage3": lambda a: stages(a, 3, 2, "<= 1.15"),
    "recompute": recompute,
    "scaling": scaling,
    "start": start,
    "communication": communication,
    "sharded-peers": sharded_peers,
    **{f"resnet20-{dtype}-{threads}":
       (lambda args, dtype=dtype, threads=threads:
        resnet_step(args, "resnet20", 128, 32, threads, dtype, ">= 1.3"))
       for dtype in ("fp32", "bf16") for threads in (1, 2)},
    **{f"resnet18-{threads}":
       (lambda args, threads=threads:
        resnet_step(args, "resnet18", 16, 224, threads, "fp32", ">= 1.2",
                    steps=4))
       for threads in (1, 2)},
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
        parser.error(f"unknown questions: {', '.join(sorted(unknown))}; --list shows all")
    if args.list:
        return print("\n".join(QUESTIONS))
    if not shutil.which("mpirun"):
        parser.error("mpirun is not installed; ./run.sh installs it")
    print("| what | measured | ratio | bar | |\n| --- | --- | --- | --- | --- |")
    for name in args.questions or QUESTIONS:
        QUESTIONS[name](args)


if __name__ == "__main__":
    main()
