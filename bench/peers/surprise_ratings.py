#!/usr/bin/env python3
"""Trains Surprise's SVD or SVDpp, with default settings, on the split of a bench_rating_split file.

    surprise_ratings.py --split fold.tsv --model SVDpp --seed 1

Prints a JSON object with the RMSE on the held-out ratings.
"""
import argparse
import json
import time


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", required=True, metavar="FILE.tsv")
    parser.add_argument("--model", choices=("SVD", "SVDpp"), default="SVD")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    import numpy as np
    import surprise
    parts = [], []
    for user, item, rating, held_out in np.loadtxt(args.split, skiprows=1):
        parts[int(held_out)].append((int(user), int(item), rating, None))
    ratings = [rating for *_, rating, _ in parts[0]]
    data = surprise.Dataset(surprise.Reader(rating_scale=(min(ratings), max(ratings))))
    model = getattr(surprise, args.model)(random_state=args.seed)
    begin = time.perf_counter()
    model.fit(data.construct_trainset(parts[0]))
    seconds = time.perf_counter() - begin
    predictions = model.test([rating[:3] for rating in parts[1]])
    print(json.dumps({"rmse": surprise.accuracy.rmse(predictions, verbose=False), "fit_s": seconds,
                      "train": len(parts[0]), "held_out": len(parts[1]),
                      "mean": sum(ratings) / len(ratings), "surprise": surprise.__version__}))


if __name__ == "__main__":
    main()
