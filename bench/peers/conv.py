#!/usr/bin/env python3
"""Time in PyTorch the convolutions that bench_conv timed, and compare.

    bench_conv --net resnet20 --batch 128 --threads 1 > ours.json
    conv.py ours.json             # JSON: our rows, PyTorch's times beside them, and their ratios

Activations and weights are channels_last, PyTorch's fast layout. Backward is autograd's: the
gradients of the weight and, except for the first layer, of the input. `ratio` is PyTorch's time
divided by ours, over both passes. The summary's ratio is over the whole network: the times of a
layer are multiplied by the number of such layers.
"""
import argparse
import json
import pathlib
import statistics
import time

import process

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def loop_s(calls, body, wait):
    begin = time.perf_counter()
    for _ in range(calls):
        body()
    wait()
    return time.perf_counter() - begin


def median_s(body, wait):
    loop_s(2, body, wait)
    calls = max(1, min(1000, int(0.05 / loop_s(1, body, wait))))
    return statistics.median(loop_s(calls, body, wait) / calls for _ in range(7))


def peer(row, ours):
    import torch
    from torch.nn.functional import conv2d
    options = {"device": ours["device"], "dtype": getattr(torch, DTYPES[ours["dtype"]])}
    wait = torch.cuda.synchronize if ours["device"] == "cuda" else lambda: None

    def values(*shape):
        return torch.rand(shape, **options).sub(0.5).to(memory_format=torch.channels_last)

    x = values(ours["batch"], row["channels"], row["pixels"], row["pixels"])
    weight = values(row["out_channels"], row["channels"], row["kernel"], row["kernel"])
    weight.requires_grad_()
    x.requires_grad_(not row["is_first"])
    wanted = (weight,) if row["is_first"] else (weight, x)

    def forward():
        return conv2d(x, weight, stride=row["stride"], padding=row["kernel"] // 2)
    y = forward()
    dy = torch.rand_like(y)

    def backward():
        torch.autograd.grad(y, wanted, dy, retain_graph=True)
    return {"forward": 1e3 * median_s(forward, wait), "backward": 1e3 * median_s(backward, wait)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", type=pathlib.Path, help="what bench_conv printed")
    ours = json.loads(parser.parse_args().ours.read_text())
    process.before_torch(ours["threads"])
    import torch
    torch.set_num_threads(ours["threads"])
    totals = [0, 0]
    for row in ours["rows"]:
        times = peer(row, ours)
        row["torch_forward_ms"], row["torch_backward_ms"] = times["forward"], times["backward"]
        both = row["forward_ms"] + row["backward_ms"], sum(times.values())
        row["ratio"] = both[1] / both[0]
        totals = [total + row["count"] * ms for total, ms in zip(totals, both)]
    print(json.dumps({**ours, "torch": torch.__version__, "ms": totals[0], "torch_ms": totals[1],
                      "ratio": totals[1] / totals[0]}))


if __name__ == "__main__":
    main()
