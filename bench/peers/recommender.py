#!/usr/bin/env python3
"""Trains train_recommender's mf or neumf for ranking in PyTorch. The initialization, batches,
negatives, Adam, cosine and evaluation follow train_recommender's rules, but the random numbers
differ from train_recommender's.

    recommender.py --split last.tsv --model mf --loss bpr --epochs 20 --seed 1

bench_rating_split writes last.tsv. Prints a JSON object: hr@10 and ndcg@10 after the last epoch,
for the model and for a ranking by popularity alone. A held-out item is ranked twice: among all
items that its user does not have in training, and among --sampled-items items drawn from these.
"""
import argparse
import json
import math

import process


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", required=True, metavar="FILE.tsv")
    parser.add_argument("--model", choices=("mf", "neumf"), default="mf")
    parser.add_argument("--factors", type=int, default=64)
    parser.add_argument("--hidden", default="64,32,16", help="neumf: widths of the MLP")
    parser.add_argument("--loss", choices=("bce", "bpr"), default="bce")
    parser.add_argument("--negatives", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--l2", type=float, default=0.0)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--sampled-items", type=int, default=99)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def models(torch):
    """Return the models' classes, by name.

    A model returns scores (B, K), of K items for each of B users, and the embedding rows it read.
    """
    nn = torch.nn

    def table(rows, width, deviation):
        embedding = nn.Embedding(rows, width)
        nn.init.normal_(embedding.weight, std=deviation)
        return embedding

    def glorot(inputs, outputs):
        layer = nn.Linear(inputs, outputs)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    class MatrixFactorization(nn.Module):
        def __init__(self, users, items, factors, _hidden):
            super().__init__()
            self.p, self.q = table(users, factors, 0.1), table(items, factors, 0.1)
            self.b_u, self.b_i = table(users, 1, 0), table(items, 1, 0)

        def forward(self, users, items):
            rows = p, q, b_u, b_i = self.p(users), self.q(items), self.b_u(users), self.b_i(items)
            return (p.unsqueeze(1) * q).sum(-1) + b_u + b_i.squeeze(-1), rows

    class NeuralFactorization(nn.Module):
        def __init__(self, users, items, factors, hidden):
            super().__init__()
            self.p, self.q = table(users, factors, 0.01), table(items, factors, 0.01)
            self.mlp_p = table(users, hidden[0] // 2, 0.01)
            self.mlp_q = table(items, hidden[0] // 2, 0.01)
            self.layers = nn.ModuleList(map(glorot, hidden, hidden[1:]))
            self.output = glorot(factors + hidden[-1], 1)

        def forward(self, users, items):
            rows = p, q, mlp_p, mlp_q = (self.p(users), self.q(items), self.mlp_p(users),
                                         self.mlp_q(items))
            shape = (len(mlp_q) if len(mlp_q) > 1 else len(mlp_p), mlp_q.size(1), -1)
            x = torch.cat((mlp_p.unsqueeze(1).expand(shape), mlp_q.expand(shape)), -1)
            for layer in self.layers:
                x = layer(x).relu()
            return self.output(torch.cat((p.unsqueeze(1) * q, x), -1)).squeeze(-1), rows

    return {"mf": MatrixFactorization, "neumf": NeuralFactorization}


def draw_negatives(torch, has, users, count, generator):
    """Draw (N, count) items uniformly, for each user from those not in the user's training data."""
    items = torch.randint(has.size(1), (len(users), count), generator=generator)
    while True:
        wrong = has[users.unsqueeze(1), items].nonzero()
        if len(wrong) == 0:
            return items
        items[wrong[:, 0], wrong[:, 1]] = torch.randint(has.size(1), (len(wrong),),
                                                        generator=generator)


def places(torch, scores, candidates, held_out):
    """Count the candidates ranked before each user's held-out item. Ties rank by item number."""
    own = scores.gather(1, held_out.unsqueeze(1))
    number = torch.arange(scores.size(1))
    before = (scores > own) | ((scores == own) & (number < held_out.unsqueeze(1)))
    return (before & candidates).sum(1)


def quality(torch, place, k=10):
    found = place < k
    gain = torch.where(found, 1 / torch.log2(place.double() + 2), 0.0)
    return {f"hr@{k}": found.double().mean().item(), f"ndcg@{k}": gain.mean().item()}


def protocols(torch, has, users, held_out, sampled, generator):
    """Return masks (users, items), by name: the items among which the held-out item is ranked."""
    others = ~has[users]
    others[torch.arange(len(users)), held_out] = False
    drawn = torch.zeros_like(others)
    chosen = torch.multinomial(others.double(), sampled, generator=generator)  # without replacement
    drawn.scatter_(1, chosen, True)
    return {"all": others, "sampled": drawn}


def train(torch, args, model, data, has, generator):
    users, items = data
    functional = torch.nn.functional
    steps_per_epoch = len(users) // args.batch
    steps = args.epochs * steps_per_epoch
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    targets = torch.zeros(args.batch, 1 + args.negatives)
    targets[:, 0] = 1
    for _ in range(args.epochs):
        order = torch.randperm(len(users), generator=generator)
        drawn = draw_negatives(torch, has, users, args.negatives, generator)
        for step in range(steps_per_epoch):
            rows = order[step * args.batch:(step + 1) * args.batch]
            scores, read = model(users[rows], torch.cat((items[rows].unsqueeze(1), drawn[rows]), 1))
            if args.loss == "bpr":
                loss = functional.softplus(scores[:, 1:] - scores[:, :1]).mean()
            else:
                loss = functional.binary_cross_entropy_with_logits(scores, targets)
            if args.l2:
                loss = loss + args.l2 / args.batch * sum(x.square().sum() for x in read)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return loss.item()


def main():
    args = arguments()
    process.before_torch(args.threads)
    import numpy as np
    import torch
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    table = np.loadtxt(args.split, skiprows=1)
    users, items = torch.tensor(table[:, 0]).long(), torch.tensor(table[:, 1]).long()
    held = torch.tensor(table[:, 3]) == 1
    data, held_users, held_items = (users[~held], items[~held]), users[held], items[held]
    if len(held_users) == 0 or len(held_users) != len(held_users.unique()):
        raise SystemExit(f"{args.split}: expected one held-out item a user, as --split last gives")
    sizes = int(users.max()) + 1, int(items.max()) + 1
    has = torch.zeros(sizes, dtype=torch.bool)
    has[data] = True
    model = models(torch)[args.model](*sizes, args.factors,
                                      [int(width) for width in args.hidden.split(",")])
    loss = train(torch, args, model, data, has, generator)
    among = protocols(torch, has, held_users, held_items, args.sampled_items, generator)
    with torch.no_grad():
        everything = torch.arange(sizes[1]).unsqueeze(0)
        scores = torch.cat([model(part, everything)[0] for part in held_users.split(64)])
    popularity = has.sum(0).expand(len(held_users), -1)
    result = {"loss": loss, "torch": torch.__version__}
    for name, candidates in among.items():
        result[name] = quality(torch, places(torch, scores, candidates, held_items))
        result[f"popularity, {name}"] = quality(
            torch, places(torch, popularity, candidates, held_items))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
