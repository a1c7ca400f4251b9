"""Helpers of the scripts in this folder: bf16 training in two ways, and fp32 training.

    precision = Precision(model, "autocast", device="cpu")
    optimizer = torch.optim.AdamW(precision.parameters)
    with precision.forward():
        loss = model(tokens, targets)
    loss.backward()
    precision.take_gradients()      # clipping and optimizer.step() use precision.parameters
    optimizer.step()
    precision.give_weights()

The second argument of Precision is the kind of training:

    autocast  fp32 weights and residual stream; torch.autocast runs products and attention in bf16
    master    everything in bf16; AdamW updates fp32 copies of the weights
    fp32      everything in fp32
"""
import contextlib

import torch


class Precision:
    def __init__(self, model, kind, device="cpu"):
        self.device = device
        self.autocast = kind == "autocast"
        self.parameters = list(model.parameters())
        self.masters = []  # (weight of the model, its fp32 copy)
        if kind == "master":
            copies = [p.detach().clone().requires_grad_() for p in self.parameters]
            self.masters = list(zip(self.parameters, copies))
            self.parameters = copies
            model.to(torch.bfloat16)

    def forward(self):
        return (torch.autocast(self.device, dtype=torch.bfloat16) if self.autocast
                else contextlib.nullcontext())

    def take_gradients(self):
        for weight, master in self.masters:
            master.grad = weight.grad.float()
            weight.grad = None

    def give_weights(self):
        with torch.no_grad():
            for weight, master in self.masters:
                weight.copy_(master)


def adamw_kind(kind, device="cpu"):
    """Return `kind`. If it is "auto", return "fused" if this PyTorch has a fused AdamW for the
    device (for CPUs since 2.4), else "single"."""
    if kind != "auto":
        return kind
    probe = torch.zeros(1, requires_grad=True, device=device)
    probe.grad = torch.zeros(1, device=device)
    try:
        torch.optim.AdamW([probe], fused=True).step()
        return "fused"
    except (RuntimeError, TypeError):  # not for this device, or no such option
        return "single"


def adamw_options(args):
    options = {"lr": args.lr, "betas": (0.9, 0.95), "eps": 1e-8}
    kind = adamw_kind(args.adamw, args.device)
    return dict(options, fused=True) if kind == "fused" else dict(options,
                                                                  foreach=kind == "foreach")
