#!/usr/bin/env python3
"""Time a part of what bench_kernels times, in PyTorch on a GPU: attention, a product and a copy.

    kernels.py                        # JSON; attention with two of PyTorch's backends
    kernels.py --device cpu --tiny    # tiny sizes, to try this script

q, k and v of attention are separate contiguous tensors (B, H, T, D), so the time does not include
splitting a packed qkv or packing its gradient. Forward and backward are timed together, as autograd
runs them. Each row of the output has the name of the row of bench_kernels to compare it with. In
rows of attention, the name of the backend is appended to this name. If a backend cannot run here,
the figures of its rows are null.
"""
import argparse
import json
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"FLASH_ATTENTION": SDPBackend.FLASH_ATTENTION,
            "CUDNN_ATTENTION": SDPBackend.CUDNN_ATTENTION}


class Timer:
    def __init__(self, args):
        self.wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
        self.samples, self.sample_s = (1, 0) if args.tiny else (7, 0.02)

    def loop(self, calls, body):
        begin = time.perf_counter()
        for _ in range(calls):
            body()
        self.wait()
        return time.perf_counter() - begin

    def seconds(self, body):
        self.loop(3, body)  # finds and loads kernels
        calls = max(1, int(self.sample_s / self.loop(1, body)))
        return statistics.median(self.loop(calls, body) / calls for _ in range(self.samples))


def attention(args, timer, backend, context, head):
    width, tokens = (256, 128) if args.tiny else (2048, 16384)
    shape = (tokens // context, width // head, context, head)  # (B, H, T, D)
    q, k, v, dy = (torch.randn(shape, device=args.device, dtype=torch.bfloat16) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()

    def step():
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.autograd.grad(y, (q, k, v), dy)
    try:
        with sdpa_kernel(backend):
            seconds = timer.seconds(step)
    except RuntimeError:  # no such backend for this device
        return {"ms": None, "tflops_per_s": None}
    return {"ms": 1e3 * seconds, "tflops_per_s": 7e-12 * tokens * context * width / seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    timer = Timer(args)
    rows = []
    for context in (64, 128) if args.tiny else (1024, 4096):
        for head in (64, 128):
            for name, backend in BACKENDS.items():
                rows.append({"name": f"attention T={context} D={head}, {name}",
                             **attention(args, timer, backend, context, head)})
    n = 64 if args.tiny else 8192
    a, b = (torch.randn((n, n), device=args.device, dtype=torch.bfloat16) for _ in range(2))
    seconds = timer.seconds(lambda: torch.mm(a, b))
    rows.append({"name": "bf16 product", "ms": 1e3 * seconds,
                 "tflops_per_s": 2e-12 * n**3 / seconds})
    x = torch.ones(2**10 if args.tiny else 2**28, device=args.device)
    y = torch.empty_like(x)
    seconds = timer.seconds(lambda: y.copy_(x))
    rows.append({"name": "copy", "ms": 1e3 * seconds,
                 "gb_per_s": 2e-9 * x.numel() * x.element_size() / seconds})
    print(json.dumps({"rows": rows, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
