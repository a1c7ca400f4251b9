#!/usr/bin/env python3
"""Time GPT training steps under PyTorch's own ZeRO-1: the peer of two ranks.

    ddp_step.py --preset micro --batch 6              # 2 ranks x 1 thread, 6 sequences each
    ddp_step.py --ranks 1 --zero off --batch 12       # plain DistributedDataParallel, one rank

DistributedDataParallel over gloo, with ZeroRedundancyOptimizer around AdamW unless --zero off.
Model, stream and options are gpt_step.py's; --batch is a rank's. In step s, rank r of N reads the
sequences from (s*N + r)*B on, so N ranks of B see what one process sees with a batch of N*B.
Rank 0 prints steps (loss: mean over ranks) and a summary with the peak memory of every rank.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

import gpt_step
import process


def launch(args):
    """Start this script once per rank; fresh processes, so that each has a peak of its own."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, *sys.argv], env={
            **os.environ, "PEER_RANK": str(rank), "PEER_STORE": f"file://{folder}/store",
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }) for rank in range(args.ranks)]
        try:
            # Done when rank 0 is; a rank that fails would leave the others waiting for it.
            while ranks[0].poll() is None and not any(rank.poll() for rank in ranks):
                time.sleep(0.05)
        finally:
            for rank in ranks:
                rank.kill()
        sys.exit(abs(ranks[0].wait()))


def train(args, rank, import_kib):
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel
    import gpt2
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method=os.environ["PEER_STORE"], rank=rank,
                            world_size=args.ranks)
    config = gpt2.Config(args.layers, args.heads, args.width, args.context, args.vocab)
    model = gpt2.Gpt(config)
    gpt2.load(model, args.weights) if args.weights else gpt2.init(model)
    text = np.fromfile(args.data, np.uint8) if args.data else None
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    options = {"lr": args.lr, "betas": (0.9, 0.95), "eps": 1e-8,
               "foreach": args.adamw == "foreach"}
    groups = gpt2.weight_groups(model.parameters())
    optimizer = (torch.optim.AdamW(groups, **options) if args.zero == "off" else
                 ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **options))
    step_ms, losses = [], []
    for step in range(args.warmup + args.steps):
        first = (step * args.ranks + rank) * args.batch
        tokens, targets = gpt2.batch(first, args.batch, config, text)
        dist.barrier()
        start = time.perf_counter()
        loss = model(tokens, targets)
        loss.backward()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)  # gradients are views of DDP's buckets
        dist.barrier()
        step_ms.append((time.perf_counter() - start) * 1e3)
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / args.ranks)
        if rank == 0:
            gpt_step.report(args, {"step": step, "loss": losses[-1], "ms": step_ms[-1]},
                            f"step {step:3d}  loss {losses[-1]:.6f}  {step_ms[-1]:8.1f} ms")
    peaks = [None] * args.ranks
    dist.all_gather_object(peaks, (process.vm_hwm_kib(), import_kib))
    if rank == 0:
        tokens_per_s = 1e3 * args.ranks * args.batch * args.context / statistics.median(
            step_ms[args.warmup:])
        gpt_step.summarize(args, step_ms, losses, import_kib, ranks=args.ranks, zero=args.zero,
                           tokens_per_s=tokens_per_s, rank_vm_hwm_kib=[p for p, _ in peaks],
                           rank_vm_hwm_import_kib=[i for _, i in peaks])
    dist.barrier()
    # torch 1.13 can deadlock while it tears DDP down: its destructor holds the interpreter's lock
    # and joins a gloo thread that waits for that lock.
    sys.stdout.flush()
    os._exit(0)


def main():
    def add(parser):
        parser.add_argument("--ranks", type=int, default=2)
        parser.add_argument("--zero", choices=("on", "off"), default="on")
    args = gpt_step.arguments(add, __doc__, single_process=False)
    if "PEER_RANK" not in os.environ:
        launch(args)
    process.before_torch(args.threads, args.malloc == "keep")
    import torch.distributed
    import_kib = process.vm_hwm_kib()
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        raise SystemExit("ddp_step: this torch has no gloo")
    train(args, int(os.environ["PEER_RANK"]), import_kib)


if __name__ == "__main__":
    main()
