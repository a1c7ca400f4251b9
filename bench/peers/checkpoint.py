#!/usr/bin/env python3
"""Time checkpoints of GPT-2's weights and AdamW's moments in PyTorch: the peer of bench_checkpoint.

    checkpoint.py --preset gpt2 --folder /dev/shm/run --rounds 5              # dcp, 2 ranks
    checkpoint.py --preset gpt2 --folder /dev/shm/run --way torch.save

    --way dcp          torch.distributed.checkpoint.save: every rank has the state and writes a part
    --way torch.save   rank 0 alone writes

By itself, neither way flushes to the disk. With --fsync every file and the folder are flushed, as
Tessera always does. Rank 0 prints a JSON object with the milliseconds of each round, from barrier
to barrier.
"""
import argparse
import json
import os
import pathlib
import shutil
import time

import process
import sharded_step

SIZES = {"nano": (4, 128, 64, 256), "micro": (6, 384, 256, 256), "gpt2": (12, 768, 1024, 50257)}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--preset", choices=SIZES, default="gpt2")
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--way", choices=("dcp", "torch.save"), default="dcp")
    parser.add_argument("--fsync", action="store_true")
    return parser.parse_args()


def state_of(torch, preset):
    layers, width, context, vocab = SIZES[preset]
    shapes = {"wte.weight": (vocab, width), "wpe.weight": (context, width),
              "ln_f.weight": (width,), "ln_f.bias": (width,)}
    for i in range(layers):
        for name, rows in (("attn.c_attn", 3 * width), ("attn.c_proj", width),
                           ("mlp.c_fc", 4 * width)):
            shapes[f"h.{i}.{name}.weight"] = (rows, width)
            shapes[f"h.{i}.{name}.bias"] = (rows,)
        shapes[f"h.{i}.mlp.c_proj.weight"] = (width, 4 * width)
        for name in ("mlp.c_proj.bias", "ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias"):
            shapes[f"h.{i}.{name}"] = (width,)
    torch.manual_seed(1)
    return {kind: {name: torch.randn(shape) for name, shape in shapes.items()}
            for kind in ("model", "exp_avg", "exp_avg_sq")}


def flush(folder):
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def main():
    args = arguments()
    if "PEER_RANK" not in os.environ:
        return sharded_step.launch(args)
    process.before_torch(1)
    import torch
    import torch.distributed as distributed
    import torch.distributed.checkpoint as dcp
    rank = int(os.environ["PEER_RANK"])
    distributed.init_process_group("gloo", init_method=os.environ["PEER_STORE"], rank=rank,
                                   world_size=args.ranks)
    torch.set_num_threads(1)
    state = state_of(torch, args.preset)
    folder = args.folder / "checkpoint"

    def save():
        if args.way == "dcp":
            dcp.save(state, checkpoint_id=str(folder), no_dist=False)
        elif rank == 0:
            torch.save(state, folder / "checkpoint.pt")
        if args.fsync:
            distributed.barrier()
            if rank == 0:
                flush(folder)

    def load():
        if args.way == "dcp":
            dcp.load(state, checkpoint_id=str(folder))
        else:
            loaded = torch.load(folder / "checkpoint.pt", weights_only=True)
            for kind, tensors in state.items():
                for name, tensor in tensors.items():
                    tensor.copy_(loaded[kind][name])

    def timed(body):
        distributed.barrier()
        begin = time.perf_counter()
        body()
        distributed.barrier()
        return round((time.perf_counter() - begin) * 1e3, 1)

    saves, loads = [], []
    for _ in range(args.rounds):
        if rank == 0:
            shutil.rmtree(args.folder, ignore_errors=True)
            folder.mkdir(parents=True)
        distributed.barrier()
        saves.append(timed(save))
        loads.append(timed(load))
    if rank == 0:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(json.dumps({"bytes": size, "save_ms": saves, "load_ms": loads,
                          "torch": torch.__version__}), flush=True)
    distributed.barrier()


if __name__ == "__main__":
    main()
