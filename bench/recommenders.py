#!/usr/bin/env python3
"""Run train_recommender beside its peers: quality on MovieLens 100K, and speed.

    bench/recommenders.py --data ml-100k/u.data --surprise venv/bin/python ratings
    bench/recommenders.py --data ml-100k/u.data --python peer2/bin/python ranking
    bench/recommenders.py --python peer2/bin/python speed

    ratings   RMSE after the last epoch, mean over five folds (drawn with --seed), beside Surprise's
              SVD and SVDpp on the same folds
    ranking   hr@10 and ndcg@10 of each user's last item, mean and standard error of --seeds runs,
              beside the same recipe in PyTorch
    speed     a training step of matrix factorization, beside the fastest variant in PyTorch (--way
              of bench/peers/recommender_step.py)

speed runs Tessera and PyTorch alternately and stops if their losses differ. It compares the CPU
time and the elapsed time. A busy machine lengthens CPU time less than elapsed time. ratings,
ranking and speed each print rows of a table. bench/peers/README.md says how to install the peers.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from compare import (BIN, PEER_LIBRARY, PEERS, alternate, environment, last_json, median,
                     require_same_losses, row)

# The benchmark holds out each user's last rating. The choice of these settings did not use these
# ratings: they were removed, and settings were compared on each user's last remaining rating.
RANKING = {
    "mf": {"loss": "bce", "negatives": 4, "lr": 5e-3, "l2": 1e-3, "epochs": 20, "factors": 64},
    "neumf": {"loss": "bce", "negatives": 4, "lr": 3e-3, "l2": 1e-3, "epochs": 20, "factors": 64},
}
SAMPLED = 99
WAYS = ("dense", "sparse", "compiled", "compiled-all")
SPEED = (  # users, items, batch, timed steps
    (943, 1682, 1024, 300), (943, 1682, 65536, 30),
    (100000, 50000, 1024, 60), (100000, 50000, 65536, 15),
)


def flags(options):
    return [part for name, value in options.items()
            for part in ("--" + name.replace("_", "-"), value)]


def train(args, **options):
    """Run train_recommender on one thread. Return its log's header and last evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "log.jsonl"
        command = [args.bin / "train_recommender", "--threads", 1, "--log", log, *flags(options)]
        done = subprocess.run([str(part) for part in command], env=environment(1), text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode != 0:
            sys.exit(f"{' '.join(str(part) for part in command)}: {done.stdout}")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
    return lines[0], [line for line in lines if line["type"] == "eval"][-1]


def split_of(args, folder, split, seed):
    """Writes Tessera's split of the data to a file, and returns the file's path."""
    path = pathlib.Path(folder) / "split.tsv"
    done = subprocess.run([args.bin / "bench_rating_split", "--data", args.data, "--split", split,
                           "--seed", str(seed), "--output", path], env=environment(1),
                          stdout=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{args.data} cannot be split")
    return path


def require(python, module, flag):
    """Exits with a message unless `python`, which the option `flag` sets, can import `module`."""
    try:
        tried = subprocess.run([python, "-c", f"import {module}"], stderr=subprocess.DEVNULL,
                               env=dict(environment(1), **PEER_LIBRARY)).returncode
    except OSError as error:
        sys.exit(f"{python}: {error.strerror}; --{flag} names another interpreter")
    if tried != 0:
        sys.exit(f"{python} has no {module}; bench/peers/README.md says how to install it, and "
                 f"--{flag} names another interpreter")


def require_data(args):
    if not args.data:
        sys.exit("--data is missing: the path of MovieLens 100K's u.data")


def ratings(args):
    require_data(args)
    require(args.surprise, "surprise", "surprise")
    found = {name: [] for name in ("mf", "svd++", "SVD", "SVDpp")}
    with tempfile.TemporaryDirectory() as folder:
        for fold in range(1, 6):
            split = f"fold:{fold}/5"
            path = split_of(args, folder, split, args.seed)
            for model in ("mf", "svd++"):
                found[model].append(train(args, data=args.data, model=model, split=split,
                                          seed=args.seed)[1]["rmse"])
            for model in ("SVD", "SVDpp"):
                found[model].append(last_json(
                    [args.surprise, PEERS / "surprise_ratings.py", "--split", path,
                     "--model", model, "--seed", args.seed])["rmse"])
    for ours, theirs in (("mf", "SVD"), ("svd++", "SVDpp")):
        a, b = statistics.mean(found[ours]), statistics.mean(found[theirs])
        folds = "; ".join(f"{x:.4f}, {y:.4f}" for x, y in zip(found[ours], found[theirs]))
        row(f"RMSE, {ours}, five folds of seed {args.seed}",
            f"{a:.4f}, Surprise's {theirs} {b:.4f}", f"{a - b:+.4f}", "at most +0",
            f"each fold: {folds}")


def with_error(values):
    return f"{statistics.mean(values):.4f} ± {standard_error(values):.4f}"


def standard_error(values):
    return statistics.stdev(values) / len(values) ** 0.5


def ranking(args):
    require_data(args)
    require(args.python, "torch", "python")
    with tempfile.TemporaryDirectory() as folder:
        path = split_of(args, folder, "last", 1)
        for model, recipe in RANKING.items():
            rank_with(args, path, model, recipe)


def rank_with(args, path, model, recipe):
    seeds = range(1, args.seeds + 1)
    theirs = [last_json([args.python, PEERS / "recommender.py", "--split", path, "--model", model,
                         "--sampled-items", SAMPLED, "--seed", seed, *flags(recipe)],
                        **PEER_LIBRARY) for seed in seeds]
    for protocol, items in (("all", 0), ("sampled", SAMPLED)):
        ours = [train(args, data=args.data, objective="ranking", model=model, seed=seed,
                      sampled_items=items, **recipe) for seed in seeds]
        for measure in ("hr@10", "ndcg@10"):
            a = [evaluation[measure] for _, evaluation in ours]
            b = [result[protocol][measure] for result in theirs]
            popularity = ours[0][0]["popularity"][measure]
            if items == 0 and not abs(popularity - theirs[0]["popularity, all"][measure]) <= 1e-6:
                sys.exit(f"{measure} of popularity: {popularity}, PyTorch {theirs[0]}")
            errors = (standard_error(a) ** 2 + standard_error(b) ** 2) ** 0.5
            row(f"{measure}, {model}, {ours[0][1]['protocol']}",
                f"{with_error(a)}, PyTorch {with_error(b)}, popularity {popularity:.4f}",
                f"{(statistics.mean(a) - statistics.mean(b)) / errors:+.1f} standard errors; "
                f"{statistics.mean(a) / popularity:.2f} x popularity", "at least -2; 1.3 x")


def speed(args):
    require(args.python, "torch", "python")
    for users, items, batch, steps in SPEED:
        step_speed(args, users, items, batch, steps)


def step_speed(args, users, items, batch, steps):
    sizes = ["--users", users, "--items", items, "--batch", batch]
    script = [args.python, PEERS / "recommender_step.py", *sizes]
    with tempfile.TemporaryDirectory() as folder:
        weights = pathlib.Path(folder) / "init.safetensors"
        subprocess.run([str(part) for part in [*script, "--write-weights", weights]],
                       env=dict(environment(1), **PEER_LIBRARY), check=True)
        timed = ["--steps", steps, "--weights", weights]
        mine, *peers = alternate(
            args.rounds, lambda: last_json([args.bin / "bench_recommender_step", *sizes, *timed]),
            *(lambda way=way: last_json([*script, *timed, "--way", way], **PEER_LIBRARY)
              for way in WAYS))
    for way, results in zip(WAYS, peers):
        # SparseAdam updates only rows that were read, so only its first loss equals ours.
        count = 1 if way == "sparse" else None
        a, b = ([{"losses": runs[0]["losses"][:count]}] for runs in (mine, results))
        require_same_losses(way, a, b, 2e-4)
    name = f"{users:,} x {items:,}, batch {batch:,}"
    theirs = min(peers, key=lambda results: median(results, "cpu_ms"))
    for key, clock in (("cpu_ms", "processor's time"), ("median_ms", "time")):
        ways = ", ".join(f"{way} {median(results, key):.2f} ms"
                         for way, results in zip(WAYS, peers))
        a, b = median(mine, key), median(theirs, key)
        row(f"step of mf, {name}, {clock}",
            f"{a:.2f} ms, {batch / a / 1e3:.2f} M samples/s; PyTorch {b:.2f} ms", f"{b / a:.2f} x",
            ">= 2", f"PyTorch {theirs[0]['torch']}: {ways}")


QUESTIONS = {"ratings": ratings, "ranking": ranking, "speed": speed}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help=", ".join(QUESTIONS))
    parser.add_argument("--data", help="MovieLens 100K's u.data")
    parser.add_argument("--seed", type=int, default=1, help="seed of the folds")
    parser.add_argument("--seeds", type=int, default=5, help="runs that are averaged")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bin", type=pathlib.Path, default=BIN, help="the folder of our programs")
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter with torch")
    parser.add_argument("--surprise", default="/usr/bin/python3",
                        help="an interpreter with scikit-surprise")
    args = parser.parse_args()
    unknown = set(args.questions) - set(QUESTIONS)
    if unknown:
        parser.error(f"unknown questions: {', '.join(sorted(unknown))}; "
                     f"expected {', '.join(QUESTIONS)}")
    if args.seeds < 2 or args.rounds < 1:
        parser.error("--seeds must be at least 2, for a standard error, and --rounds at least 1")
    missing = [name for name in ("train_recommender", "bench_rating_split",
                                 "bench_recommender_step") if not (args.bin / name).exists()]
    if missing:
        parser.error(f"{args.bin} has no {', '.join(missing)}; build the preset release first")
    print("| what | measured | ratio | bar | |\n| --- | --- | --- | --- | --- |")
    for name in args.questions or QUESTIONS:
        QUESTIONS[name](args)


if __name__ == "__main__":
    main()
