#!/usr/bin/env python3
"""Compare zero_plan's times of a step with measured ones.

    bench/plan_time.py                     # fp32 and bf16; about ten minutes
    bench/plan_time.py --precision bf16 --rounds 1

Two configurations calibrate the planner. The run on one rank gives the rates of its products and
of its memory. The run on two ranks has no overlap, so a rank waits for all of its communication.
This run gives the rate at which a rank sends. It also gives the rate of a rank's products while a
second core is busy, which is a few percent lower than on one rank. Then zero_plan predicts six
configurations of one or two ranks, with other sizes, stages and micro-batches, and the table shows
the errors. The configurations run alternately, --rounds times each. A time is the median over
rounds of each run's median over steps.

Each of the two ranks computes and communicates on one core, so the planner gets --shared-cores.
"""
import argparse
import json
import subprocess
import sys

from compare import BIN, alternate, last_json, median

BAR = 0.15
STEPS, WARMUP = 5, 2
# Sizes of the model, for a context of 256 and a vocabulary of 256. `batch` is the micro-batch, and
# `micro_steps` the number of micro-batches that a rank has in a step.
CALIBRATION = (
    dict(ranks=1, layers=6, width=384, batch=6, stage=2),
    dict(ranks=2, layers=4, width=640, batch=2, stage=2, overlap="off"),
)
PREDICTED = (
    dict(ranks=1, layers=4, width=256, batch=12, stage=0),
    dict(ranks=1, layers=12, width=768, batch=2, stage=2),
    dict(ranks=2, layers=8, width=256, batch=4, stage=1),
    dict(ranks=2, layers=6, width=512, batch=6, stage=3),
    dict(ranks=2, layers=4, width=768, batch=2, stage=0),
    dict(ranks=2, layers=12, width=384, batch=3, stage=2, micro_steps=2),
)
HEAD_WIDTH = 64
LATENCY = "5us"


def name(config):
    text = "{ranks} rank(s), {layers} x {width}, micro-batch {batch}, stage {stage}"
    if "micro_steps" in config:
        text += ", {micro_steps} micro-steps"
    if "overlap" in config:
        text += ", overlap {overlap}"
    return text.format(**config)


def sizes(config):
    return ["--preset", "micro", "--layers", config["layers"], "--width", config["width"],
            "--heads", config["width"] // HEAD_WIDTH, "--stage", config["stage"],
            "--overlap", config.get("overlap", "on")]


def micro_batches(config):
    return config["ranks"] * config.get("micro_steps", 1)


def measure(config, precision):
    ranks = config["ranks"]
    command = [BIN / "bench_gpt_step", *sizes(config), "--precision", precision,
               "--batch", config["batch"], "--micro-batches", micro_batches(config),
               "--steps", STEPS, "--warmup", WARMUP]
    return last_json((["mpirun", "-n", ranks] if ranks > 1 else []) + command)


def plan(config, precision, **rates):
    """Return zero_plan's times of a step. `rates` become flags of the same names."""
    command = [BIN / "zero_plan", *sizes(config), "--precision", precision,
               "--ranks", config["ranks"], "--micro-batch", config["batch"],
               "--global-batch", config["batch"] * micro_batches(config),
               "--bucket-bytes", 4 << 20, "--shared-cores", "--latency", LATENCY, "--json", "-"]
    for flag, value in rates.items():
        command += ["--" + flag.replace("_", "-"), repr(value)]
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["stages"][0]["time"]


def products_rate(config, precision, measured, memory_bandwidth, waiting_ms):
    """Return the FLOP/s of a run's products, assuming memory_bandwidth for its other work."""
    counted = plan(config, precision, flops=1e12, bandwidth=1e9)
    moving = counted["moved_bytes"] / memory_bandwidth
    computing = (median(measured, "median_ms") - waiting_ms) / 1e3 - moving
    if computing <= 0:
        sys.exit("the update was so slow that nothing is left for products: measure again")
    return counted["flops"] / computing


def calibrate(precision, alone, two):
    """Return the rates, by number of ranks, that make zero_plan reproduce the calibrating times."""
    one_rank, two_ranks = CALIBRATION
    update_bytes = plan(one_rank, precision, flops=1e12)["update_bytes"]
    memory_bandwidth = update_bytes / (median(alone, "update_ms") / 1e3)
    waiting_ms = median(two, "exposed_ms")
    rates = dict(memory_bandwidth=memory_bandwidth)

    slowest, fastest = 1e6, 1e13  # bytes per second; a higher rate means less waiting
    while fastest / slowest > 1.001:
        middle = (slowest * fastest) ** 0.5
        planned = plan(two_ranks, precision, flops=1e12, bandwidth=middle, **rates)
        if planned["exposed_ms"] > waiting_ms:
            slowest = middle
        else:
            fastest = middle
    rates["bandwidth"] = slowest
    return {1: dict(rates, flops=products_rate(one_rank, precision, alone, memory_bandwidth, 0)),
            2: dict(rates, flops=products_rate(two_ranks, precision, two, memory_bandwidth,
                                               waiting_ms))}


def compare(precision, rounds):
    configs = CALIBRATION + PREDICTED
    results = alternate(rounds, *[lambda c=config: measure(c, precision) for config in configs])
    rates = calibrate(precision, *results[:len(CALIBRATION)])
    for ranks, found in rates.items():
        print(f"{precision}, {ranks} rank(s): "
              + ", ".join(f"{flag} {value:.4g}" for flag, value in found.items()))
    print("\n| configuration | measured ms | planned ms | off by |\n| --- | --- | --- | --- |")
    worst = 0
    for config, result in zip(configs, results):
        measured = median(result, "median_ms")
        planned = plan(config, precision, **rates[config["ranks"]])["step_ms"]
        off = planned / measured - 1
        if config in PREDICTED:
            worst = max(worst, abs(off))
        role = "" if config in PREDICTED else " (calibrates)"
        print(f"| {name(config)}{role} | {measured:.1f} | {planned:.1f} | {off:+.1%} |", flush=True)
    print(f"\n{precision}: at most {worst:.1%} off, bar {BAR:.0%}\n", flush=True)
    return worst <= BAR


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"],
                        choices=["fp32", "bf16", "fp16"])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    within = [compare(precision, args.rounds) for precision in args.precision]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
