#!/usr/bin/env python3
"""Trains a ResNet on CIFAR-10's binary files in PyTorch, with train_resnet's recipe: padded random
crops, mirror images, Nesterov SGD, a linear warm-up and a cosine. Prints a JSON line an epoch.

    python3 resnet_train.py --data cifar-10-batches-bin --epochs 15 --seed 1
"""
import argparse
import glob
import json
import math
import os

import numpy as np
import torch
from torch.nn import functional as F

from resnet import resnet, sgd


def read(paths):
    records = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in paths])
    return torch.tensor(records[:, 1:].reshape(-1, 3, 32, 32)), torch.tensor(records[:, 0]).long()


def augment(images, generator):
    """Return random 32x32 crops of the images padded by 4 pixels, about half of them mirrored."""
    padded = F.pad(images, (4, 4, 4, 4))
    count = len(images)
    top = torch.randint(0, 9, (count,), generator=generator)
    left = torch.randint(0, 9, (count,), generator=generator)
    mirrored = torch.rand(count, generator=generator) < 0.5
    result = torch.empty_like(images)
    for i in range(count):
        crop = padded[i, :, top[i]:top[i] + 32, left[i]:left[i] + 32]
        result[i] = crop.flip(2) if mirrored[i] else crop
    return result


@torch.no_grad()
def evaluate(model, images, labels):
    model.eval()
    right = sum((model(x).argmax(1) == y).sum().item()
                for x, y in zip(images.split(256), labels.split(256)))
    model.train()
    return right / len(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    raw, labels = read(sorted(glob.glob(os.path.join(args.data, "data_batch_*.bin"))))
    raw_test, test_labels = read([os.path.join(args.data, "test_batch.bin")])
    scaled = raw.double() / 255
    mean = scaled.mean((0, 2, 3)).float().view(1, 3, 1, 1)
    std = scaled.std((0, 2, 3), unbiased=False).float().view(1, 3, 1, 1)

    def normalise(pixels):
        return ((pixels.float() / 255 - mean) / std).to(memory_format=torch.channels_last)

    images, test = normalise(raw), normalise(raw_test)
    model = resnet(args.model).to(memory_format=torch.channels_last)
    optimizer = sgd(model, args.lr)
    steps_per_epoch = len(images) // args.batch
    steps = args.epochs * steps_per_epoch
    warmup = min(100, steps // 10)

    def factor(step):
        if step < warmup:
            return (step + 1) / (warmup + 1)
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    for epoch in range(args.epochs):
        order = torch.randperm(len(images), generator=generator)
        for step in range(steps_per_epoch):
            rows = order[step * args.batch:(step + 1) * args.batch]
            batch = augment(images[rows], generator).contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), labels[rows])
            loss.backward()
            optimizer.step()
            schedule.step()
        print(json.dumps({"epoch": epoch + 1, "loss": round(loss.item(), 4),
                          "top1": evaluate(model, test, test_labels)}), flush=True)


if __name__ == "__main__":
    main()
