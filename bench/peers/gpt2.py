"""GPT-2 in eager PyTorch, as a careful user writes it for the CPU; shared by the peers.

    B batch, T context, C width, H heads, V vocabulary
    model = Gpt(Config(layers=6, heads=6, width=384, context=256, vocab=256))
    loss = model(tokens, targets)

Parameters have Hugging Face's names. Weights of linears are [out, in] in the model, as in
nn.Linear, and [in, out] in a file, as in Hugging Face's Conv1D.
"""
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import safetensors_io

CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")  # stored transposed in a file


@dataclass
class Config:
    layers: int
    heads: int
    width: int
    context: int
    vocab: int


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.c_attn = nn.Linear(config.width, 3 * config.width)
        self.c_proj = nn.Linear(config.width, config.width)
        mask = torch.full((config.context, config.context), -math.inf).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2)  # (B, H, T, C/H)
                   for t in self.c_attn(x).split(C, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            # Scales q and not the scores, which have T/(C/H) times as many elements.
            scores = (q * (C // self.heads) ** -0.5) @ k.transpose(2, 3)  # (B, H, T, T)
            y = F.softmax(scores + self.mask[:T, :T].to(scores.dtype), dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.width, 4 * config.width)
        self.c_proj = nn.Linear(4 * config.width, config.width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.width, eps=1e-5)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, eps=1e-5)
        self.mlp = Mlp(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab, config.width)  # also the head, without a bias
        self.wpe = nn.Embedding(config.context, config.width)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, eps=1e-5)

    def forward(self, tokens, targets):  # (B, T), (B, T) -> mean loss in nats
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1))


def init(model, std=0.02, seed=1337):
    """Initialize matrices from a normal distribution, biases as 0 and layer norms' weights as 1.

    The deviation is `std`, or std / sqrt(2 layers) for the projections that a residual is added to.
    """
    generator = torch.Generator().manual_seed(seed)
    residual = std / math.sqrt(2 * len(model.h))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.normal_(0, residual if name.endswith("c_proj.weight") else std,
                          generator=generator)
            else:
                p.fill_(1.0 if name.endswith("weight") else 0.0)


def to_file(name, tensor):
    """Convert a parameter or gradient to a file's form: numpy, with Conv1D weights as [in, out]."""
    array = tensor.detach().numpy()
    return array.T if name.endswith(CONV1D) else array


def save(model, path, prefix="transformer."):
    safetensors_io.write(path, {prefix + n: to_file(n, p) for n, p in model.named_parameters()},
                         {"format": "pt"})


def load(model, path):
    """Load a file, with or without `transformer.` in names. Skip the tied head and HF's masks."""
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, array in safetensors_io.read(path):
            if name.startswith("transformer."):
                name = name[len("transformer."):]
            if name == "lm_head.weight" or name.endswith((".attn.bias", ".attn.masked_bias")):
                continue
            array = array.T if name.endswith(CONV1D) else array
            if array.shape != tuple(parameters[name].shape):
                raise SystemExit(f"{path}: {name} has shape {array.shape}")
            parameters.pop(name).copy_(torch.from_numpy(array))
    if parameters:
        raise SystemExit(f"{path}: no {', '.join(parameters)}")


def weight_groups(parameters, weight_decay=0.1):
    """Return AdamW groups: decay on matrices, also wte and wpe; none on biases and layer norms."""
    parameters = list(parameters)
    return [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
            {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}]


def synthetic_token(position, vocab):
    """Return the token at position p of the synthetic stream of tokens that batch() reads.

    The token is ((p * 2654435761 mod 2^32) * vocab) >> 32.
    """
    hashed = (np.asarray(position, np.uint64) * np.uint64(2654435761)) & np.uint64(0xFFFFFFFF)
    return ((hashed * np.uint64(vocab)) >> np.uint64(32)).astype(np.int64)


def batch(first_sequence, sequences, config, text=None):
    """Return tokens and targets, (sequences, T) each. The targets are the tokens shifted by one.

    Sequence i begins at offset i*T of the stream. The stream is synthetic, or, if `text` is given,
    repeats the bytes of `text` without end.
    """
    T = config.context
    begin = (first_sequence + np.arange(sequences)) * T
    positions = begin[:, None] + np.arange(T + 1)
    tokens = (synthetic_token(positions, config.vocab) if text is None
              else text[positions % len(text)].astype(np.int64))
    tokens = torch.from_numpy(tokens)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
