#!/usr/bin/env python3
"""Time training steps of a ResNet in PyTorch: the peer of bench_resnet_step.

    resnet_step.py --model resnet20 --batch 128 --size 32 --threads 2
    resnet_step.py --write-weights init.safetensors       # write initial weights and stop
    resnet_step.py --dtype bf16                           # autocast

Tensors are channels_last. SGD has Nesterov momentum, and weight decay on filters and matrices.
Prints a JSON object.
"""
import argparse
import json
import statistics
import time

import process


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--weights", metavar="FILE.safetensors")
    parser.add_argument("--write-weights", metavar="FILE.safetensors")
    return parser.parse_args()


def main():
    args = arguments()
    process.before_torch(args.threads)
    import numpy as np
    import torch
    from torch.nn import functional as F
    import safetensors_io
    from resnet import resnet, sgd
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    small = None if args.model in ("resnet20", "resnet32", "resnet56") else args.size <= 64
    model = resnet(args.model, small_images=small)
    if args.write_weights:
        state = {name: value.numpy() for name, value in model.state_dict().items()}
        return safetensors_io.write(args.write_weights, state, {"format": "pt"})
    if args.weights:
        read = {name: torch.tensor(array) for name, array in safetensors_io.read(args.weights)}
        model.load_state_dict(read)
    model = model.to(args.device, memory_format=torch.channels_last)
    step_model = torch.compile(model) if args.compile else model
    optimizer = sgd(model, 1e-3)
    elements = args.batch * args.size * args.size * 3
    synchronize = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    ms, losses = [], []
    for step in range(args.warmup + args.steps):
        index = np.arange(elements, dtype=np.uint64) + np.uint64(1000003 * step)
        words = (index.astype(np.uint32) * np.uint32(2654435761)) >> np.uint32(8)
        pixels = words.astype(np.float32) * np.float32(2.0 ** -23) - np.float32(1)
        images = torch.from_numpy(pixels.reshape(args.batch, args.size, args.size, 3))
        images = images.permute(0, 3, 1, 2).to(args.device)  # channels_last without a copy
        labels = ((torch.arange(args.batch) * 7 + step) % 10).to(args.device)
        synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = F.cross_entropy(step_model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        synchronize()
        if step >= args.warmup:
            ms.append((time.perf_counter() - begin) * 1e3)
    print(json.dumps({"median_ms": statistics.median(ms), "min_ms": min(ms), "losses": losses,
                      "vm_hwm_kib": process.vm_hwm_kib(), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
