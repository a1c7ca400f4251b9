#!/usr/bin/env python3
"""Time GPT training steps under PyTorch's own sharding: the peer of Tessera's stages 0 to 3.

    sharded_step.py --preset micro --batch 6                       # 2 ranks x 1 thread, ZeRO-1
    sharded_step.py --preset micro --batch 6 --strategy fsdp-full  # needs a current PyTorch
    sharded_step.py --batch 6 --ranks 1 --micro-batches 2 --strategy ddp   # the same batches

Ranks communicate over gloo. --batch is the size of a micro-batch, and a step has --micro-batches of
them over all ranks. The strategies:

    ddp             DistributedDataParallel                                    (stage 0)
    zero1           ddp, with ZeroRedundancyOptimizer around AdamW             (stage 1)
    fsdp-grad-op    fully_shard, weights kept whole between forward and backward (stage 2)
    fsdp-full       fully_shard, weights gathered again for backward           (stage 3)

With --dtype bf16, ddp and zero1 run under autocast and send gradients in fp32. fully_shard gathers
bf16 weights and reduces gradients in fp32.

Step s reads the M*B sequences from s*M*B on: M micro-batches of B sequences. Each of N ranks takes
M/N consecutive micro-batches, so the global batch does not depend on N.

Rank 0 prints each step, and a summary with the peak memory of every rank. A loss is the mean over
the step's micro-batches. It is summed in fp64, in the order in which the data are read, which does
not depend on N. It is printed exactly.
"""
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time

import gpt_step
import process

STRATEGIES = ("ddp", "zero1", "fsdp-grad-op", "fsdp-full")


def launch(args):
    """Start this script once per rank, in a new process, so that peak memory is each rank's own."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, *sys.argv], env={
            **os.environ, "PEER_RANK": str(rank), "PEER_STORE": f"file://{folder}/store",
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        }) for rank in range(args.ranks)]
        try:
            # Wait until rank 0 ends, or a rank fails: other ranks would wait for the failed one.
            while ranks[0].poll() is None and not any(rank.poll() for rank in ranks):
                time.sleep(0.05)
        finally:
            for rank in ranks:
                rank.kill()
        sys.exit(abs(ranks[0].wait()))


class DataParallel:
    """ddp and zero1. Only a step's last backward sends gradients."""

    def __init__(self, args, model):
        import torch
        from precision import Precision, adamw_options
        import gpt2
        self.precision = Precision(model, "autocast" if args.dtype == "bf16" else "fp32")
        self.model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        groups, options = gpt2.weight_groups(model.parameters()), adamw_options(args)
        if args.strategy == "zero1":
            from torch.distributed.optim import ZeroRedundancyOptimizer
            self.optimizer = ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **options)
        else:
            self.optimizer = torch.optim.AdamW(groups, **options)

    def micro_batch(self, tokens, targets, share, last):
        with contextlib.nullcontext() if last else self.model.no_sync():
            with self.precision.forward():
                loss = self.model(tokens, targets)
            (loss * share).backward()
        return loss.detach()

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=False)  # gradients are views of DDP's buckets


class FullySharded:
    """fsdp-grad-op and fsdp-full. Every backward sends gradients: no rank stores all of them."""

    def __init__(self, args, model):
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        from precision import adamw_options
        import gpt2
        policy = (MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
                  if args.dtype == "bf16" else MixedPrecisionPolicy())
        options = {"mesh": torch.distributed.init_device_mesh("cpu", (args.ranks,)),
                   "reshard_after_forward": args.strategy == "fsdp-full", "mp_policy": policy}
        for block in model.h:
            fully_shard(block, **options)
        # The weights outside of blocks form one unit. Forward reads it first and last, so it stays
        # gathered in between.
        fully_shard(model, **dict(options, reshard_after_forward=False))
        self.model = model
        self.optimizer = torch.optim.AdamW(gpt2.weight_groups(model.parameters()),
                                           **adamw_options(args))

    def micro_batch(self, tokens, targets, share, last):
        loss = self.model(tokens, targets)
        (loss * share).backward()
        return loss.detach()

    def zero_grad(self):
        self.optimizer.zero_grad(set_to_none=True)


def train(args, rank, import_kib):
    import numpy as np
    import torch
    import torch.distributed as dist
    import gpt2
    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo", init_method=os.environ["PEER_STORE"], rank=rank,
                            world_size=args.ranks)
    config = gpt2.Config(args.layers, args.heads, args.width, args.context, args.vocab)
    model = gpt2.Gpt(config)
    gpt2.load(model, args.weights) if args.weights else gpt2.init(model)
    text = np.fromfile(args.data, np.uint8) if args.data else None
    strategy = (DataParallel if args.strategy in ("ddp", "zero1") else FullySharded)(args, model)
    own = args.micro_batches // args.ranks
    step_ms, losses = [], []
    for step in range(args.warmup + args.steps):
        first = step * args.micro_batches + rank * own
        batches = [gpt2.batch((first + i) * args.batch, args.batch, config, text)
                   for i in range(own)]
        dist.barrier()
        start = time.perf_counter()
        mine = torch.stack([strategy.micro_batch(*batch, 1 / own, i == own - 1)
                            for i, batch in enumerate(batches)])
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(strategy.model.parameters(), args.clip)
        strategy.optimizer.step()
        strategy.zero_grad()
        dist.barrier()
        step_ms.append((time.perf_counter() - start) * 1e3)
        everyone = [torch.empty_like(mine) for _ in range(args.ranks)]
        dist.all_gather(everyone, mine)
        losses.append(sum(torch.cat(everyone).tolist()) / args.micro_batches)
        if rank == 0:
            gpt_step.report(args, {"step": step, "loss": losses[-1], "ms": step_ms[-1]},
                            f"step {step:3d}  loss {losses[-1]!r}  {step_ms[-1]:8.1f} ms")
    peaks = [None] * args.ranks
    dist.all_gather_object(peaks, (process.vm_hwm_kib(), import_kib))
    if rank == 0:
        tokens_per_s = 1e3 * args.micro_batches * args.batch * args.context / statistics.median(
            step_ms[args.warmup:])
        gpt_step.summarize(args, step_ms, losses, import_kib, ranks=args.ranks,
                           strategy=args.strategy, tokens_per_s=tokens_per_s,
                           rank_vm_hwm_kib=[p for p, _ in peaks],
                           rank_vm_hwm_import_kib=[i for _, i in peaks])
    dist.barrier()
    # torch 1.13 can deadlock while it tears DDP down: DDP's destructor holds the interpreter's lock
    # and joins a gloo thread that waits for that lock.
    sys.stdout.flush()
    os._exit(0)


def main():
    def add(parser):
        parser.add_argument("--ranks", type=int, default=2)
        parser.add_argument("--micro-batches", type=int, help="of a step; default: one a rank")
        parser.add_argument("--strategy", choices=STRATEGIES, default="zero1")
    args = gpt_step.arguments(add, __doc__, single_process=False)
    args.micro_batches = args.micro_batches or args.ranks
    if args.micro_batches % args.ranks:
        raise SystemExit("sharded_step: --micro-batches must be a multiple of --ranks")
    if "PEER_RANK" not in os.environ:
        launch(args)
    process.before_torch(args.threads, args.malloc == "keep")
    process.import_torch()
    import torch.distributed
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        raise SystemExit("sharded_step: this torch has no gloo")
    if args.strategy.startswith("fsdp"):
        try:
            from torch.distributed.fsdp import fully_shard  # noqa: F401
        except (ImportError, ValueError) as error:  # ValueError: torch 1.13 on Python 3.11
            raise SystemExit(f"sharded_step: no fully_shard in {torch.__version__}: {error}")
    train(args, int(os.environ["PEER_RANK"]), process.vm_hwm_kib())


if __name__ == "__main__":
    main()
