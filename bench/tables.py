#!/usr/bin/env python3
"""Time training steps of a row-sparse embedding table alternately with PyTorch's.

    bench/tables.py --python PYTHON          # PYTHON has torch (bench/peers/README.md)

The table has 10^6 rows of 64 values. In a step, a rank looks up 4,096 Zipf-distributed rows.
PyTorch uses Embedding(sparse=True) and SparseAdam; on two ranks, DistributedDataParallel over gloo
wraps the model. The script stops if Tessera's losses differ from PyTorch's. It prints Markdown
rows, the last two of which compare Tessera's row-sparse table with its dense table.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from compare import environment, require_same_losses

HERE = pathlib.Path(__file__).resolve().parent


def run(command):
    result = subprocess.run(command, capture_output=True, text=True, check=False,
                            env=environment(1))
    if result.returncode != 0:
        sys.exit(f"{command[0]} failed: {result.stdout}{result.stderr}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent / "build/release/bin")
    parser.add_argument("--python", default=sys.executable, help="an interpreter with PyTorch")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    program = args.bin / "bench_table_step"
    if not os.access(program, os.X_OK):
        sys.exit(f"{args.bin} has no bench_table_step: build it, or give --bin")
    if subprocess.run([args.python, "-c", "import torch"], capture_output=True,
                      check=False).returncode != 0:
        sys.exit(f"{args.python} has no torch; give --python an interpreter with PyTorch")

    def ours(ranks, *options):
        launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        return run([*launcher, str(program), *map(str, options)])

    def peer(*options):
        return run([args.python, str(HERE / "peers/table_step.py"), *map(str, options)])

    def compare(what, mine, theirs, bar):
        pairs = [(mine(), theirs()) for _ in range(args.rounds)]
        for a, b in pairs:
            require_same_losses(what, [a], [b], 1e-4)
        a = statistics.median(pair[0]["median_ms"] for pair in pairs)
        b = statistics.median(pair[1]["median_ms"] for pair in pairs)
        print(f"| {what} | {a:.2f} ms, PyTorch {b:.2f} ms | **{b / a:.2f} ×** | {bar} |",
              flush=True)

    print("| what | measured | ratio | bar |\n| --- | --- | --- | --- |")
    for threads in (1, 2):
        compare(f"step of a table, {threads} thread{'s' if threads > 1 else ''}",
                lambda t=threads: ours(1, "--threads", t),
                lambda t=threads: peer("--threads", t), "2 ×")
    for stage in (2, 3):
        compare(f"2 ranks, stage {stage}, against DDP over gloo",
                lambda s=stage: ours(2, "--stage", s), lambda: peer("--ranks", 2), "3 ×")
    for ranks in (1, 2):
        pairs = [(ours(ranks), ours(ranks, "--dense", "--steps", 8)) for _ in range(args.rounds)]
        sparse, dense = ({"sent": way[0]["sent"],
                          "median_ms": statistics.median(run["median_ms"] for run in way)}
                         for way in zip(*pairs))
        print(f"| the same step with our dense table, {ranks} rank{'s' if ranks > 1 else ''} | "
              f"{sparse['median_ms']:.2f} ms, dense {dense['median_ms']:.1f} ms; sent "
              f"{sparse['sent']:,}, dense {dense['sent']:,} bytes | "
              f"{dense['median_ms'] / sparse['median_ms']:.0f} × | reported |", flush=True)


if __name__ == "__main__":
    main()
