#!/usr/bin/env python3
"""Time GPT training steps in PyTorch: the peer of bench_gpt_step.

    gpt_step.py --preset micro --threads 2                       # 6x384, T=256, B=12
    gpt_step.py --preset nano --write-weights init.safetensors   # write initial weights and stop
    gpt_step.py --preset nano --weights init.safetensors --json  # begin with the weights of a file
    gpt_step.py --preset gpt2 --dtype bf16                       # by autocast; see --bf16
    gpt_step.py --optimizer-only 124439808                       # AdamW alone, GPT-2's shapes
    gpt_step.py --device cuda --compile --preset gpt2 --context 1024 --batch 64 --dtype bf16

On CUDA, attention runs on the FLASH_ATTENTION backend, and a step ends when the device is done.
Training has no dropout. Gradients are clipped at 1.0 (see --clip). AdamW has betas 0.9 and 0.95,
eps 1e-8, and decay 0.1 on matrices. Step s reads sequences s*B ... s*B+B-1 of a synthetic stream,
or of --data; see gpt2.batch.
Prints a line for each step, and a summary; with --json each is one JSON object. The summary has the
median time of the steps after the warm-up, and the peak memory. As JSON it also has the least time
and the losses of all steps.
"""
import argparse
import contextlib
import json
import statistics
import time

import process

PRESETS = {  # layers, heads, width, context, batch, vocab
    "nano": (4, 4, 128, 64, 12, 256),
    "micro": (6, 6, 384, 256, 12, 256),
    "gpt2": (12, 12, 768, 256, 1, 50257),
    "gpt2-medium": (24, 16, 1024, 256, 1, 50257),
    "gpt2-large": (36, 20, 1280, 256, 1, 50257),
}


def arguments(add=lambda parser: None, description=__doc__, single_process=True, timed=True):
    """Parse the command line. A caller that ignores some flags must leave them out.

    `single_process` adds the flags that sharded_step.py lacks, and `timed` those that gpt_memory.py
    lacks.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="micro")
    for name in ("layers", "heads", "width", "context", "batch", "vocab"):
        parser.add_argument("--" + name, type=int, help="replaces the value of --preset")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--clip", type=float, default=1.0,
                        help="largest norm of the gradient; 0: no clipping")
    parser.set_defaults(device="cpu")
    if single_process:
        parser.add_argument("--device", choices=("cpu", "cuda"))
        parser.add_argument("--bf16", choices=("autocast", "master"), default="autocast",
                            help="how --dtype bf16 trains; see precision.py")
        parser.add_argument("--compile", action="store_true", help="torch.compile the model")
        parser.add_argument("--write-weights", metavar="FILE.safetensors")
        parser.add_argument("--optimizer-only", type=int, metavar="N",
                            help="time only AdamW, on N parameters")
    parser.add_argument("--adamw", choices=("auto", "fused", "foreach", "single"), default="auto",
                        help="auto: fused where this torch has it for the device, else single")
    if timed:
        parser.add_argument("--steps", type=int, default=10)
        parser.add_argument("--warmup", type=int, default=2)
        parser.add_argument("--weights", metavar="FILE.safetensors")
        parser.add_argument("--data", metavar="FILE", help="a text to train on, read as bytes")
        parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
        parser.add_argument("--malloc", choices=("keep", "plain"), default="keep",
                            help="keep: freed memory is reused; plain: as the C library does it")
        parser.add_argument("--json", action="store_true")
    add(parser)
    args = parser.parse_args()
    if args.device == "cuda" and args.optimizer_only:
        parser.error("--optimizer-only is for the CPU")
    for name, value in zip(("layers", "heads", "width", "context", "batch", "vocab"),
                           PRESETS[args.preset]):
        if getattr(args, name) is None:
            setattr(args, name, value)
    return args


def report(args, fields, text):
    print(json.dumps(fields) if args.json else text, flush=True)


def summarize(args, step_ms, losses, import_kib, **more):
    import torch
    import precision
    peak_kib = process.vm_hwm_kib()
    timed = step_ms[args.warmup:]
    fields = {"summary": True, "median_ms": statistics.median(timed), "min_ms": min(timed),
              "losses": losses, "dtype": args.dtype,
              "adamw": precision.adamw_kind(args.adamw, args.device),
              "vm_hwm_kib": peak_kib, "vm_hwm_import_kib": import_kib,
              "threads": torch.get_num_threads(), "torch": torch.__version__,
              "blas": process.blas_library(), "cpu_capability": process.cpu_capability(), **more}
    if args.device == "cuda":
        fields["cuda_peak_bytes"] = torch.cuda.max_memory_allocated()
        fields["cuda_name"] = torch.cuda.get_device_name()
    report(args, fields, f"median {fields['median_ms']:.1f} ms, peak {peak_kib / 1024:.0f} MiB, "
           f"{(peak_kib - import_kib) / 1024:.0f} above import")


def flash_attention(args):
    """On CUDA, force FLASH_ATTENTION: PyTorch by itself may choose another backend."""
    import torch
    if args.device == "cpu":
        return contextlib.nullcontext()
    return torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION)


def train(args, import_kib):
    import numpy as np
    import torch
    import gpt2
    from precision import Precision, adamw_options
    config = gpt2.Config(args.layers, args.heads, args.width, args.context, args.vocab)
    model = gpt2.Gpt(config)
    gpt2.load(model, args.weights) if args.weights else gpt2.init(model)
    if args.write_weights:
        return gpt2.save(model, args.write_weights)
    text = np.fromfile(args.data, np.uint8) if args.data else None
    model.to(args.device)
    precision = Precision(model, args.bf16 if args.dtype == "bf16" else "fp32", args.device)
    if args.compile:
        model.compile()
    optimizer = torch.optim.AdamW(gpt2.weight_groups(precision.parameters), **adamw_options(args))
    synchronize = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    step_ms, losses = [], []
    for step in range(args.warmup + args.steps):
        tokens, targets = (t.to(args.device) for t in
                           gpt2.batch(step * args.batch, args.batch, config, text))
        if args.device == "cuda" and step == args.warmup:
            torch.cuda.reset_peak_memory_stats()
        synchronize()
        start = time.perf_counter()
        with flash_attention(args), precision.forward():
            loss = model(tokens, targets)
        loss.backward()
        precision.take_gradients()
        if args.clip > 0:
            torch.nn.utils.clip_grad_norm_(precision.parameters, args.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        precision.give_weights()
        synchronize()
        step_ms.append((time.perf_counter() - start) * 1e3)
        losses.append(loss.item())
        report(args, {"step": step, "loss": losses[-1], "ms": step_ms[-1]},
               f"step {step:3d}  loss {losses[-1]:.6f}  {step_ms[-1]:8.1f} ms")
    summarize(args, step_ms, losses, import_kib,
              parameters=sum(p.numel() for p in model.parameters()))


def optimizer_only(args, import_kib):
    import torch
    import gpt2
    from precision import adamw_options
    C, left, parameters = 768, args.optimizer_only, []
    block = [(C,), (C,), (3 * C, C), (3 * C,), (C, C), (C,),
             (C,), (C,), (4 * C, C), (4 * C,), (C, 4 * C), (C,)]
    for shape in [(50257, C), (1024, C)] + 12 * block + [(C,), (C,)]:
        if left > 0:
            tensor = torch.empty(shape).normal_(0, 0.02)
            tensor = tensor if tensor.numel() <= left else tensor.view(-1)[:left].clone()
            left -= tensor.numel()
            tensor.grad = torch.full_like(tensor, 1e-3)
            parameters.append(tensor.requires_grad_())
    if left > 0:
        raise SystemExit(f"--optimizer-only: at most {args.optimizer_only - left} parameters")
    optimizer = torch.optim.AdamW(gpt2.weight_groups(parameters), **adamw_options(args))
    step_ms = []
    for step in range(args.warmup + args.steps):
        start = time.perf_counter()
        optimizer.step()
        step_ms.append((time.perf_counter() - start) * 1e3)
        report(args, {"step": step, "ms": step_ms[-1]}, f"step {step:3d}  {step_ms[-1]:8.1f} ms")
    # A single pass reads p, g, m, v and writes p, m, v: 28 bytes a parameter.
    gbytes = 28e-6 * args.optimizer_only / statistics.median(step_ms[args.warmup:])
    summarize(args, step_ms, [], import_kib, parameters=args.optimizer_only,
              gbytes_per_s=gbytes)


def main():
    args = arguments()
    process.before_torch(args.threads, args.malloc == "keep")
    import_kib = process.import_torch()
    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(1337)
    (optimizer_only if args.optimizer_only else train)(args, import_kib)


if __name__ == "__main__":
    main()
