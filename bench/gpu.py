#!/usr/bin/env python3
"""Run the benchmarks that need a GPU, beside PyTorch on the same GPU, and print rows of a table.

Each benchmark answers one question, such as kernels or gpt2:

    bench/gpu.py                  # every question; bench/gpu.sh builds and tests first
    bench/gpu.py kernels gpt2     # some of them; --list names them
    bench/gpu.py --smoke --device cpu --bin build/release/bin   # tiny sizes without a GPU

Each process measures its own times and prints medians; timed work ends with waiting for the device
(bench/kernels.cpp, bench/resnet_step.cpp, and the peers). Only bench_gpt_step waits for a step
after it has launched the next one, as train_gpt does. The peer is PyTorch with torch.compile, fused
AdamW and its FLASH_ATTENTION backend. --python none leaves the peer out. --peer-only compares the
peer with Tessera's figures that an earlier call left in --out, and measures Tessera only if these
figures are missing. For gpt2 and resnet, Tessera also trains from the peer's initial weights, even
with --peer-only, so that losses can be compared. Tessera's figures are printed before the peer
begins. Exit code 77 means that all the questions were skipped, because the build lacks what they
need.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import compare
import gpu_count

PRESETS = ("gpt2", "gpt2-medium", "gpt2-large")
SHAPES = {"gpt2": (12, 768), "gpt2-medium": (24, 1024), "gpt2-large": (36, 1280)}  # layers, width
NAMES = {"gpt2": "GPT-2 124M", "gpt2-medium": "GPT-2 350M", "gpt2-large": "GPT-2 774M"}


class Skipped(Exception):
    """Raised if the build cannot answer a question; the text says why."""


def smi(field):
    done = subprocess.run(["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"],
                          stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.strip().splitlines()


def batch_to_fill(args, preset):
    """Return the largest batch, a power of two, that fills at most 3/4 of the card's memory.

    The batch is at least 1. --batch overrides this batch, and --smoke takes 2. Activations and
    logits are counted: in bf16 a token's activations take about 34 bytes a channel and layer, and
    its logits 10 bytes a vocabulary entry.
    """
    if args.batch or args.smoke:
        return args.batch or 2
    layers, width = SHAPES[preset]
    sequence = 1024 * (34 * layers * width + 10 * 50257)
    fitting = 0.75 * 2**20 * float(smi("memory.total")[0]) / sequence
    return 2 ** max(0, int(fitting).bit_length() - 1)


def ours(args, program, *options, ranks=1, **env):
    launch = ["mpirun", "-n", ranks] if ranks > 1 else []
    return compare.last_json(launch + [args.bin / program, "--device", args.device, *options],
                             args.threads, **env)


def peer(args, script, *options):
    if args.python == "none":
        return None
    device = ["--device", "cpu" if args.smoke else "cuda"]
    return compare.last_json([args.python, compare.PEERS / script, *device, *options], args.threads)


def kept(args, name, measure, again):
    """Return the result in the file args.out/name.json.

    If `again`, or if the file does not exist, measure first and write the file.
    """
    path = args.out / f"{name}.json"
    if again or not path.exists():
        path.write_text(json.dumps(measure()))
    return json.loads(path.read_text())


def rows_of(result):
    return {row["name"]: row for row in result["rows"]}


def our_kernels(args, again=False):
    """Return the rows that bench_kernels measures, by name."""
    options = ["--tiny"] if args.smoke else []
    return rows_of(kept(args, "kernels", lambda: ours(args, "bench_kernels", *options), again))


def kernels(args):
    mine = our_kernels(args, again=not args.peer_only)
    if not args.peer_only:
        for name, row in mine.items():
            kernel_row(name, row, mine)
    result = peer(args, "kernels.py", *(["--tiny"] if args.smoke else []))
    for name, row in mine.items():
        peer_kernel_row(name, row, rows_of(result) if result else {})


def kernel_row(name, row, mine):
    """Print our kernel's rate relative to its bound: a copy's bandwidth or a product's rate."""
    if "gb_per_s" in row:
        ratio = row["gb_per_s"] / mine["copy"]["gb_per_s"]
        compare.row(name, f"{row['ms']:.3f} ms, {row['gb_per_s']:.3g} GB/s",
                    "" if name == "copy" else f"{ratio:.2f} of a copy",
                    "" if name == "copy" else ">= 0.85")
    else:
        ratio = row["tflops_per_s"] / mine["bf16 product"]["tflops_per_s"]
        compare.row(name, f"{row['ms']:.3f} ms, {row['tflops_per_s']:.3g} TFLOP/s",
                    f"{ratio:.2f} of the product's rate", "")


def peer_kernel_row(name, row, theirs):
    """Print our kernel beside the peer's, if the peer has one."""
    flash = theirs.get(f"{name}, FLASH_ATTENTION")
    if flash and flash["ms"]:
        cudnn = theirs.get(f"{name}, CUDNN_ATTENTION")
        note = f"cuDNN {cudnn['ms']:.3f} ms" if cudnn and cudnn["ms"] else ""
        compare.row(f"{name}: against FLASH_ATTENTION",
                    f"{row['ms']:.3f} ms, {flash['ms']:.3f} ms", f"{flash['ms'] / row['ms']:.2f} x",
                    ">= 0.8", note or "PyTorch's cuDNN did not run")
    for key, unit in (("tflops_per_s", "TFLOP/s"), ("gb_per_s", "GB/s")):
        if name in theirs and key in theirs[name]:
            compare.row(f"{name}: PyTorch's", f"{theirs[name][key]:.3g} {unit}", "", "")


def step_options(args, preset):
    batch = ["--batch", batch_to_fill(args, preset)]
    if args.smoke:
        return ["--preset", "nano", *batch, "--steps", "2", "--warmup", "1"]
    return ["--preset", preset, "--context", "1024", *batch, "--steps", "10", "--warmup", "4"]


def graph_options(args):
    """Return the flags for CUDA graphs, or no flags on the CPU."""
    return [] if args.device == "cpu" else ["--graph", "on"]


def our_step(args, preset, *more, **env):
    # --reduction is not given, because on one rank ordered and fast reduction give the same sum.
    return ours(args, "bench_gpt_step", *step_options(args, preset), "--threads", args.threads,
                "--precision", "bf16", *graph_options(args), *more, **env)


def peer_steps(args, preset, *more):
    """Run the peer's ways of training in bf16; larger models than gpt2 run autocast only."""
    ways = compare.BF16_WAYS if preset == "gpt2" else ("autocast",)
    options = [*step_options(args, preset), "--threads", args.threads, "--dtype", "bf16",
               "--compile", "--json", *more]
    return {way: peer(args, "gpt_step.py", *options, "--bf16", way) for way in ways}


def initial_weights(args, folder, script, *options):
    """Have the peer write the initial weights, with which both sides begin."""
    path = pathlib.Path(folder) / "model.safetensors"
    command = [args.python, compare.PEERS / script, *options, "--write-weights", path]
    subprocess.run([str(part) for part in command], check=True)
    return ["--weights", path]


def tuned_step(args, preset):
    """Return our step with the table that tune writes for the preset; None if tune fails."""
    table = args.out / f"tuned-{preset}.json"
    shape = ["--preset", "nano"] if args.smoke else ["--preset", preset, "--context", 1024]
    command = [args.bin / "tune", *shape, "--micro-batch", batch_to_fill(args, preset),
               "--precision", "bf16", "--out", table]
    done = subprocess.run([str(part) for part in command], stdout=sys.stderr,
                          stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        print(f"tune failed with exit code {done.returncode}: without its table", flush=True)
        return None
    return our_step(args, preset, "--tuned", table)


def step_rows(name, mine, rate, required):
    ms = mine["median_ms"]
    achieved = mine["model_flops"] / ms * 1e-9
    compare.row(f"{name}: model FLOPs against the product's rate",
                f"{achieved:.3g} of {rate:.3g} TFLOP/s, {mine['tokens_per_s']:.0f} tokens/s",
                f"{achieved / rate:.2f}", ">= 0.50" if required else "reported")
    compare.row(f"{name}: step", f"{ms:.1f} ms, {mine['memory_peak_bytes'] / 2**30:.1f} GiB", "",
                "")


def our_gpt(args, preset, name):
    """Print our step without and with tune's table, and return the faster one."""
    required = preset == "gpt2"
    rate = our_kernels(args)["bf16 product"]["tflops_per_s"]
    mine = our_step(args, preset)
    step_rows(name, mine, rate, required)
    tuned = tuned_step(args, preset) if args.device == "cuda" else None
    if tuned:
        step_rows(f"{name}, with tune's table", tuned, rate, required)
    if tuned and tuned["median_ms"] < mine["median_ms"]:
        return {**tuned, "what": "with tune's table"}
    return {**mine, "what": "as it comes"}


def gpt(args, preset):
    required = preset == "gpt2"
    name = "nano, bf16" if args.smoke else \
        f"{NAMES[preset]}, bf16, T=1024, B={batch_to_fill(args, preset)}"
    mine = kept(args, preset, lambda: our_gpt(args, preset, name), again=not args.peer_only)
    if args.python == "none":
        return
    with tempfile.TemporaryDirectory() as folder:
        start = []
        if required:  # only for gpt2, whose file is written in seconds
            start = initial_weights(args, folder, "gpt_step.py", *step_options(args, preset))
            same = our_step(args, preset, *start)
        peers = {way: result for way, result in peer_steps(args, preset, *start).items() if result}
    ms = mine["median_ms"]
    theirs = min(peers.values(), key=lambda result: result["median_ms"])
    ways = ", ".join(f"{way} {result['median_ms']:.1f} ms" for way, result in peers.items())
    compare.row(f"{name}: step {mine['what']} against PyTorch's",
                f"{ms:.1f} ms, PyTorch {theirs['median_ms']:.1f} ms",
                f"{theirs['median_ms'] / ms:.2f} x", ">= 1.05" if required else "reported",
                f"PyTorch {theirs['torch']}: {ways}")
    if "cuda_peak_bytes" in theirs:
        a = mine["memory_peak_bytes"] / 2**30
        b = min(result["cuda_peak_bytes"] for result in peers.values()) / 2**30
        compare.row(f"{name}: peak memory", f"{a:.1f} GiB, PyTorch {b:.1f} GiB", f"{a / b:.2f} x",
                    "< 1" if required else "reported")
    # The rows are printed before the losses are compared: if losses differ, the script stops, and
    # times that are not printed yet, which took minutes, would be lost.
    if start:
        for way, result in peers.items():
            compare.require_same_losses(f"{preset}, bf16, {way}", [same], [result], 2**-8)


def resnet_sizes(args):
    """Return the model, the side of an image and the batch."""
    return ("resnet20", 32, 2) if args.smoke else ("resnet50", 224, 128)


def resnet_options(args):
    model, size, batch = resnet_sizes(args)
    steps, warmup = (2, 1) if args.smoke else (10, 4)
    return ["--model", model, "--size", size, "--batch", batch, "--threads", args.threads,
            "--steps", steps, "--warmup", warmup]


def peer_resnet(args, *more):
    return peer(args, "resnet_step.py", *resnet_options(args), "--dtype", "bf16", "--compile",
                *more)


def resnet(args):
    model, size, batch = resnet_sizes(args)
    name = f"{model}, bf16, {size}x{size}, B={batch}: step"

    def our_resnet(*more):
        return ours(args, "bench_resnet_step", *resnet_options(args), "--precision", "bf16",
                    *graph_options(args), *more)

    # The CMake cache of a build with nvcc says if cuDNN's headers were found.
    cache = args.bin.parent / "CMakeCache.txt"
    if args.device == "cuda" and cache.exists() and \
            "TESSERA_CUDNN_INCLUDE-NOTFOUND" in cache.read_text():
        raise Skipped("this build has no cuDNN, which convolutions on a GPU need")
    mine = kept(args, "resnet", our_resnet, again=not args.peer_only)
    ms = mine["median_ms"]
    if not args.peer_only:
        compare.row(name, f"{ms:.1f} ms, {1e3 * batch / ms:.0f} images/s", "", "")
    if args.python == "none":
        return
    with tempfile.TemporaryDirectory() as folder:
        start = initial_weights(args, folder, "resnet_step.py", *resnet_options(args))
        same = our_resnet(*start)
        theirs = peer_resnet(args, *start)
    compare.row(f"{name} against PyTorch's", f"{ms:.1f} ms, PyTorch {theirs['median_ms']:.1f} ms",
                f"{theirs['median_ms'] / ms:.2f} x", "reported", f"PyTorch {theirs['torch']}")
    # In bf16 two runs diverge over the steps, so only the first three losses must agree.
    first = [{**result, "losses": result["losses"][:3]} for result in (same, theirs)]
    compare.require_same_losses(f"{model}, bf16", first[:1], first[1:], 5e-2)


def idle(lines):
    """Compute how long the device was idle in the later half of the recorded time.

    `lines` are "start end name", in ns. Returns (idle ns, all ns). Spans may overlap and come in
    any order.
    """
    spans = sorted(tuple(int(word) for word in line.split(maxsplit=2)[:2]) for line in lines)
    if not spans:
        sys.exit("no kernel was seen")
    last = max(end for _, end in spans)
    begin = (spans[0][0] + last) // 2
    busy_until, idle_ns = begin, 0
    for start, end in spans:
        if start > busy_until:
            idle_ns += start - busy_until
        busy_until = max(busy_until, end)
    return idle_ns, last - begin


def gaps(args):
    library = args.bin / "libbench_kernel_times.so"
    if not library.exists():
        raise Skipped("the CUDA toolkit of this build has no CUPTI")
    with tempfile.TemporaryDirectory() as folder:
        times = pathlib.Path(folder) / "times"
        mine = our_step(args, "gpt2", "--steps", "20", CUDA_INJECTION64_PATH=str(library),
                        TESSERA_KERNEL_TIMES=str(times))
        idle_ns, all_ns = idle(times.read_text().splitlines())
    compare.row(f"time between kernels, {NAMES['gpt2']}, graph on",
                f"{idle_ns / all_ns * mine['median_ms']:.2f} of {mine['median_ms']:.1f} ms a step",
                f"{100 * idle_ns / all_ns:.1f} %", "< 2 %", "with CUPTI's records, which cost time")


def ordered(args):
    """Time the ordered reduction against a reduce-scatter.

    Runs over MPI on 2 ranks and, if there are several GPUs, over NCCL on all of them.
    """
    gpus = 1 if args.smoke else gpu_count.visible_gpus()
    runs = [("mpi", 2)] + ([("nccl", gpus)] if gpus > 1 else [])
    size = "64KiB" if args.smoke else "64MiB"
    for comm, ranks in runs:
        result = ours(args, "comm_bench", "--comm", "auto" if args.device == "cpu" else comm,
                      "--min-bytes", size, "--max-bytes", size, "--iterations", "10",
                      "--json", "-", ranks=ranks)
        ms = {row["collective"]: row["time_us"] / 1e3 for row in result["results"]}
        compare.row(f"ordered against fast reduction, {size}, {ranks} ranks over {comm}",
                    f"{ms['exchange']:.2f} ms, reduce-scatter {ms['reduce_scatter']:.2f} ms",
                    f"{ms['exchange'] / ms['reduce_scatter']:.2f} x", "reported")


QUESTIONS = {
    "kernels": kernels,
    **{preset: (lambda args, p=preset: gpt(args, p)) for preset in PRESETS},
    "resnet": resnet,
    "ordered": ordered,
    "gaps": gaps,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", metavar="QUESTION")
    parser.add_argument("--bin", type=pathlib.Path, default=compare.ROOT / "build/gpu/bin")
    parser.add_argument("--out", type=pathlib.Path,
                        help="a folder that keeps Tessera's figures between questions")
    parser.add_argument("--python", default="python3", help="an interpreter with torch, or none")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int,
                        help="sequences of a batch (default: as many as fill the GPU)")
    parser.add_argument("--threads", type=int, default=max(1, os.cpu_count() // 2))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--peer-only", action="store_true",
                        help="measure only the peer; our figures are in --out")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if unknown := set(args.questions) - set(QUESTIONS):
        parser.error(f"unknown questions: {', '.join(sorted(unknown))}; --list shows all")
    if args.list:
        return print("\n".join(QUESTIONS))
    with tempfile.TemporaryDirectory() as folder:
        args.out = args.out or pathlib.Path(folder)
        # gaps needs a library that only a GPU's driver loads, so --smoke leaves gaps out.
        default = [name for name in QUESTIONS if not (args.smoke and name == "gaps")]
        skipped = {}
        for name in args.questions or default:
            try:
                QUESTIONS[name](args)
            except Skipped as why:
                skipped[name] = str(why)
                print(f"{name}: skipped: {why}", flush=True)
    if skipped.keys() == set(args.questions or default):
        sys.exit(77)


if __name__ == "__main__":
    main()
