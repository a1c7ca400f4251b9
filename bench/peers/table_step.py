#!/usr/bin/env python3
"""Time PyTorch's training steps of one large table: the peer of bench_table_step.

    table_step.py                                  # Embedding(sparse=True) with SparseAdam
    table_step.py --ranks 2                        # the same under DistributedDataParallel, gloo
    table_step.py --ranks 2 --dense                # a dense gradient, with Adam

Rows, initial values and loss are those of bench_table_step. --batch is the number of lookups of a
rank in a step. DistributedDataParallel sends sparse gradients over gloo as sparse tensors.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

import process
from mixed import mixed


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--zipf", type=float, default=1.05)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--dense", action="store_true")
    return parser.parse_args()


def launch(args):
    """Start this script once per rank, in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, *sys.argv], env={
            **os.environ, "PEER_RANK": str(rank), "PEER_STORE": f"file://{folder}/store",
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }) for rank in range(args.ranks)]
        codes = [rank.wait() for rank in ranks]
        sys.exit(max(abs(code) for code in codes))


def train(args, rank):
    process.before_torch(args.threads)
    import numpy
    import torch

    torch.set_num_threads(args.threads)
    cumulative = numpy.cumsum(numpy.arange(1, args.rows + 1, dtype=numpy.float64) ** -args.zipf)

    def rows(step):
        first = (step * args.ranks + rank) * args.batch
        number = numpy.arange(first, first + args.batch, dtype=numpy.int64)
        at = mixed(number).astype(numpy.float64) * 2.0**-32 * cumulative[-1]
        found = numpy.searchsorted(cumulative, at, side="right").astype(numpy.uint64)
        return torch.from_numpy((found * numpy.uint64(2654435761)
                                 % numpy.uint64(args.rows)).astype(numpy.int64))

    table = torch.nn.Embedding(args.rows, args.width, sparse=not args.dense)
    with torch.no_grad():
        index = numpy.arange(args.rows * args.width, dtype=numpy.int64)
        values = (mixed(index) >> numpy.uint32(8)).astype(numpy.float32) * 2.0**-24 - 0.5
        table.weight.copy_(torch.from_numpy(values.astype(numpy.float32)).view(args.rows, -1))
    optimizer = torch.optim.Adam(table.parameters(), lr=1e-2) if args.dense else \
        torch.optim.SparseAdam(list(table.parameters()), lr=1e-2)
    model = table
    if args.ranks > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=os.environ["PEER_STORE"], rank=rank, world_size=args.ranks)
        model = torch.nn.parallel.DistributedDataParallel(table)
    ms, losses = [], []
    for step in range(args.warmup + args.steps):
        indices = rows(step)
        if args.ranks > 1:
            torch.distributed.barrier()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = model(indices).square().sum()
        loss.backward()
        optimizer.step()
        elapsed = (time.perf_counter() - begin) * 1e3
        losses.append(float(loss.detach()))
        if args.ranks > 1:
            total = torch.tensor([losses[-1]], dtype=torch.float64)
            torch.distributed.all_reduce(total)
            losses[-1] = float(total) / args.ranks
        if step >= args.warmup:
            ms.append(elapsed)
    if rank == 0:
        print(json.dumps({"median_ms": sorted(ms)[len(ms) // 2], "min_ms": min(ms),
                          "losses": losses, "torch": torch.__version__}))


if __name__ == "__main__":
    options = parse()
    if options.ranks > 1 and "PEER_RANK" not in os.environ:
        launch(options)
    train(options, int(os.environ.get("PEER_RANK", "0")))
