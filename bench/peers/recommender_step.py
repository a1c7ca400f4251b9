#!/usr/bin/env python3
"""Time training steps of matrix factorization on ratings in PyTorch: the peer of
bench_recommender_step.

    recommender_step.py --users 943 --items 1682 --batch 1024 --way dense
    recommender_step.py --write-weights init.safetensors       # write initial weights and stop

Values of --way:

    dense          fused Adam
    foreach        Adam's foreach loop
    single         Adam's single-tensor loop
    sparse         gradients of the rows that were read; SparseAdam updates only these rows
    compiled       torch.compile of forward and backward; fused Adam
    compiled-all   torch.compile of forward, backward and Adam's step

Prints a JSON object.
"""
import argparse
import json
import statistics
import time

import process
from mixed import mixed

WAYS = ("dense", "foreach", "single", "sparse", "compiled", "compiled-all")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--users", type=int, default=943)
    parser.add_argument("--items", type=int, default=1682)
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--l2", type=float, default=0.1)
    parser.add_argument("--way", choices=WAYS, default="dense")
    parser.add_argument("--weights", metavar="FILE.safetensors")
    parser.add_argument("--write-weights", metavar="FILE.safetensors")
    return parser.parse_args()


def initial_weights(args):
    import numpy as np
    random = np.random.default_rng(1)

    def factors(rows):
        return random.normal(0, 0.1, (rows, args.factors)).astype(np.float32)

    return {"user_factors.weight": factors(args.users), "item_factors.weight": factors(args.items),
            "user_bias.weight": np.zeros((args.users, 1), np.float32),
            "item_bias.weight": np.zeros((args.items, 1), np.float32)}


def drawn(numbers, below):
    """Draw as bench_recommender_step does: MurmurHash3's finalizer, spread over [0, below)."""
    import numpy as np
    return (mixed(numbers).astype(np.uint64) * np.uint64(below) >> np.uint64(32)).astype(np.int64)


def samples(torch, args, step):
    import numpy as np
    number = 3 * (step * args.batch + np.arange(args.batch, dtype=np.uint64))
    users, items = drawn(number, args.users), drawn(number + np.uint64(1), args.items)
    ratings = 1 + drawn(number + np.uint64(2), 5)
    return torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(ratings).float()


def step_of(torch, args, tables):
    """Returns a function that trains on a batch and returns its loss."""
    sparse = args.way == "sparse"
    functional = torch.nn.functional

    def loss_of(users, items, ratings):
        rows = p, q, b_u, b_i = [
            functional.embedding(numbers, table, sparse=sparse)
            for numbers, table in zip((users, items, users, items), tables)]
        scores = (p * q).sum(1) + (b_u + b_i).squeeze(1) + 3.5
        penalty = sum(x.square().sum() for x in rows)
        return functional.mse_loss(scores, ratings) + args.l2 / args.batch * penalty

    if sparse:
        optimizer = torch.optim.SparseAdam(tables, lr=5e-3)
    else:
        kind = {"single": {"foreach": False}, "foreach": {"foreach": True},
                "compiled-all": {"foreach": True}}.get(args.way, {"fused": True})
        optimizer = torch.optim.Adam(tables, lr=5e-3, **kind)
    update = optimizer.step
    if args.way.startswith("compiled"):
        loss_of = torch.compile(loss_of)
    if args.way == "compiled-all":
        update = torch.compile(optimizer.step)

    def step(users, items, ratings):
        optimizer.zero_grad()
        loss = loss_of(users, items, ratings)
        loss.backward()
        update()
        return loss.item()

    return step


def main():
    args = arguments()
    if args.write_weights:
        import safetensors_io
        return safetensors_io.write(args.write_weights, initial_weights(args), {"format": "pt"})
    process.before_torch(args.threads)
    import torch
    import safetensors_io
    torch.set_num_threads(args.threads)
    weights = dict(safetensors_io.read(args.weights)) if args.weights else initial_weights(args)
    tables = [torch.nn.Parameter(torch.from_numpy(weights[f"{name}.weight"].copy()))
              for name in ("user_factors", "item_factors", "user_bias", "item_bias")]
    step = step_of(torch, args, tables)
    ms, cpu_ms, losses = [], [], []
    for number in range(args.warmup + args.steps):
        batch = samples(torch, args, number)
        begin, cpu_begin = time.perf_counter(), time.process_time()
        losses.append(step(*batch))
        if number >= args.warmup:
            ms.append((time.perf_counter() - begin) * 1e3)
            cpu_ms.append((time.process_time() - cpu_begin) * 1e3)
    print(json.dumps({"median_ms": statistics.median(ms), "min_ms": min(ms),
                      "cpu_ms": statistics.median(cpu_ms), "losses": losses,
                      "torch": torch.__version__}))


if __name__ == "__main__":
    main()
