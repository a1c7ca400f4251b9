#!/usr/bin/env python3
"""Hostile cases for the programs, drawn from a seed (docs/hostile.md):

  hostile.py flags  --seed 1 --cases 1000   odd values, files and combinations of flags
  hostile.py jobs   --seed 1 --cases 300    ranks that were not started alike
  hostile.py faults --seed 1 --cases 300    killed ranks, full disks, files that shrink
  hostile.py flags  --seed 1 --case 17      one case, with its commands and their output

Programs are those in TESSERA_BIN, or build/release/bin. For each failure, prints the command that
runs its case again. Then prints a table of kinds and outcomes. Exits with 1 if anything failed.
"""
import argparse
import collections
import os
import pathlib
import random
import sys
import tempfile

sys.dont_write_bytecode = True
import faults
import flags
import jobs
from common import Bench, Failure

KINDS = {"flags": flags.run_case, "jobs": jobs.run_case, "faults": faults.run_case}


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--case", type=int, help="run this one alone, and print what it does")
    return parser.parse_args()


def print_table(table):
    outcomes = sorted({outcome for row in table.values() for outcome in row})
    width = max(len(kind) for kind in table)
    print(f"{'kind':{width}} {'cases':>7}", *(f"{outcome:>9}" for outcome in outcomes))
    for kind, row in sorted(table.items()):
        print(f"{kind:{width}} {sum(row.values()):7}",
              *(f"{row[outcome]:9}" for outcome in outcomes))


def again(options, number):
    return f"{sys.argv[0]} {options.kind} --seed {options.seed} --case {number}"


def main():
    options = parse()
    sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    source = pathlib.Path(__file__).resolve().parents[2]
    programs = pathlib.Path(os.environ.get("TESSERA_BIN", source / "build/release/bin")).resolve()
    if not (programs / "train_gpt").exists():
        sys.exit(f"{programs} has no train_gpt; build it, or set TESSERA_BIN")
    only = options.case is not None
    table = collections.defaultdict(collections.Counter)
    failures = 0
    with tempfile.TemporaryDirectory(prefix="tessera-hostile-") as folder:
        bench = Bench(pathlib.Path(folder), programs, prints=only)
        for number in [options.case] if only else range(options.cases):
            draw = random.Random(f"{options.kind} {options.seed} {number}")
            bench.begin()
            try:
                kind, outcome = KINDS[options.kind](bench, draw)
            except Failure as failure:
                kind, outcome = failure.kind, "FAILED"
                failures += 1
                print(f"FAILED {kind}: {failure}\n  {again(options, number)}", flush=True)
            except Exception:
                print(f"This program failed in\n  {again(options, number)}", flush=True)
                raise
            table[kind][outcome] += 1
    print_table(table)
    print(f"{options.kind}, seed {options.seed}: {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
