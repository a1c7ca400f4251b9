"""Jobs whose ranks were started differently. If the difference is not allowed, the job must end
within seconds with a nonzero code, and a message must name what differs. If the difference is
allowed, the job must end with code 0, and with the losses of a run on one rank."""
import re

from common import RATINGS, TINY, Failure, check_log, losses

LIMIT_S = 30
GPT = ["--data", "in/text.txt", *TINY, "--steps", "3"]
IMAGES = ["--data", "in/mnist", "--batch", "4", "--micro-batch", "2", "--steps", "1",
          "--eval-every", "0"]
RANKING = ["--data", "in/u.data", *RATINGS, "--objective", "ranking", "--steps", "2"]
BENCH = ["--max-bytes", "2KiB", "--iterations", "1", "--warmup", "0"]
# Flag -> two values. Some ranks get one value, all other ranks get the other value.
TRAINING = {
    "seed": ("1", "7"), "lr": ("0.01", "0.02"), "min-lr": ("1e-5", "1e-6"), "warmup": ("0", "1"),
    "weight-decay": ("0", "0.1"), "beta1": ("0.9", "0.8"), "beta2": ("0.99", "0.9"),
    "clip": ("1", "0.5"), "steps": ("3", "4"), "optimizer": ("adamw", "sgd"), "stage": ("0", "3"),
    "bucket-bytes": ("4096", "8192"), "reduction": ("ordered", "fast"), "overlap": ("on", "off"),
    "precision": ("fp32", "bf16"), "offload": ("none", "optimizer"), "eval-every": ("0", "2"),
    "threads": ("1", "2"), "device": ("cpu", "auto"), "micro-batch": ("2", "1"),
}
DIFFERENCES = {
    "train_gpt": {
        **TRAINING, "layers": ("1", "2"), "heads": ("1", "2"), "width": ("8", "16"),
        "context": ("8", "16"), "vocab": ("256", "300"), "dropout": ("0", "0.1"),
        "loss-rows": ("0", "4"), "eval-batches": ("1", "2"), "sample": ("0", "3"),
        "global-batch": ("4", "8"), "preset": ("nano", "micro"),
        "data": ("in/text.txt", "in/other.txt"), "init": ("in/gpt/model.safetensors",
                                                          "in/gpt2/model.safetensors")},
    "train_resnet": {
        **TRAINING, "augment": ("on", "off"), "model": ("resnet20", "resnet32"),
        "label-smoothing": ("0", "0.1"), "schedule": ("cosine", "onecycle"), "batch": ("4", "8")},
    "train_recommender": {
        **TRAINING, "model": ("mf", "gmf"), "factors": ("2", "3"), "split": ("fold:1/5", "last"),
        "columns": ("user,item,rating,time", "user,item,-,time"), "loss": ("bce", "bpr"),
        "objective": ("rating", "ranking"), "negatives": ("1", "2"), "l2": ("0", "0.1"),
        "top": ("3", "5"), "sampled-items": ("0", "2"), "batch": ("4", "8"),
        "data": ("in/u.data", "in/other.data"), "init": ("in/recommender/model.safetensors",
                                                         "in/recommender2/model.safetensors")},
    "comm_bench": {"min-bytes": ("1KiB", "2KiB"), "max-bytes": ("2KiB", "4KiB"),
                   "factor": ("2", "4"), "dtype": ("f32", "bf16"), "iterations": ("1", "2"),
                   "warmup": ("0", "1"), "collective": ("exchange", "broadcast")},
}
# Arguments that only some ranks get -> words. The message must have one of these words.
ONE_SIDED = {
    "train_gpt": {
        ("--plan",): ("plan",), ("--help",): ("help",), ("--recompute",): ("recompute",),
        ("--val-data", "in/val.txt"): ("val-data",), ("--stage", "7"): ("stage",),
        ("--init", "in/gpt/model.safetensors"): ("init",), ("--trace", "out/t.json"): ("trace",),
        ("--save", "out/m.safetensors"): ("save",), ("--no-such-flag",): ("no-such-flag",),
        ("--data", "in/no_such_file"): ("no_such_file", "data"), ("--width", "7", "--heads", "2"):
        ("width", "heads"), ("--data", "in/short.txt"): ("short.txt", "data")},
    "train_resnet": {("--sync-bn",): ("sync-bn", "sync bn"), ("--help",): ("help",),
                     ("--workers", "0"): ("workers",), ("--plan",): ("plan",),
                     ("--save", "out/m.safetensors"): ("save",)},
    "train_recommender": {
        ("--help",): ("help",), ("--plan",): ("plan",), ("--stage", "7"): ("stage",),
        ("--save", "out/m.safetensors"): ("save",), ("--split", "last:2"): ("split",),
        ("--data", "in/no_such_file"): ("no_such_file", "data"),
        ("--data", "in/text.txt"): ("text.txt", "data"), ("--negatives", "0"): ("negatives",)},
    "comm_bench": {("--help",): ("help",), ("--factor", "1"): ("factor",)},
}
ENVIRONMENT = {"OMP_NUM_THREADS=2": ("OMP_NUM_THREADS", "threads"),
               "ONEDNN_MAX_CPU_ISA=SSE41": ("instruction set", "ONEDNN_MAX_CPU_ISA", "ISA")}
# Arguments that may differ: another path to the same bytes, the path of a file that only rank 0
# writes, and flags whose value equals that of the other ranks.
OWN = [("--data", "out/copy.txt"), ("--log", "out/other.jsonl"), ("--config", "out/same.ini"),
       ("--seed", "1"), ("--lr", "1e-2"), ("--threads", "1")]
PROGRAMS = {"train_gpt": GPT, "train_resnet": IMAGES, "train_recommender": RANKING,
            "comm_bench": BENCH}


def differing(draw, program):
    """Returns (kind, arguments of some ranks, arguments of the other ranks, words)."""
    way = draw.choice(["flag"] * 6 + ["one-sided"] * 2 + ["environment", "program"])
    if way == "flag":
        flag = draw.choice(sorted(DIFFERENCES[program]))
        first, second = draw.sample(DIFFERENCES[program][flag], 2)
        return way, [f"--{flag}", first], [f"--{flag}", second], (flag, flag.replace("-", " "))
    if way == "one-sided":
        given = draw.choice(sorted(ONE_SIDED[program]))
        return way, [], list(given), ONE_SIDED[program][given]
    if way == "environment" and program != "comm_bench":
        variable = draw.choice(sorted(ENVIRONMENT))
        return way, [], ["env", variable], ENVIRONMENT[variable]
    other = draw.choice(sorted(PROGRAMS.keys() - {program}))
    return "program", [], [other], ("program", other)


def contexts(bench, draw, program, common, more):
    """Returns an mpirun command of two groups of ranks. `more` has two lists of arguments, which
    the groups get in random order. Instead of arguments, a list may hold "env" and a variable, or
    the name of another program to run."""
    sides = draw.sample(more, 2)
    command = ["mpirun"]
    for number, side in enumerate(sides):
        start, arguments, run = [], [*common, *side], program
        if side[:1] == ["env"]:
            start, arguments = side, list(common)
        elif len(side) == 1 and side[0] in PROGRAMS:
            run, arguments = side[0], PROGRAMS[side[0]]
        command += [*([":"] if number else []), "-n", str(draw.randint(1, 2)), *start,
                    bench.program(run), *arguments]
    return command


def must_differ(bench, draw):
    program = draw.choice(["train_gpt"] * 3 + ["train_recommender", "train_resnet", "comm_bench"])
    kind, first, second, words = differing(draw, program)
    common = list(PROGRAMS[program])
    if program != "comm_bench" and draw.random() < 0.5 and kind == "flag":
        # Besides the difference, all ranks get one more flag with the same value.
        flag = draw.choice(["stage", "reduction", "overlap", "precision"])
        common += [f"--{flag}", draw.choice(DIFFERENCES[program][flag])]
    result = bench.run(contexts(bench, draw, program, common, [first, second]), limit_s=LIMIT_S)
    if result.timed_out:
        raise Failure(kind, f"hangs\n  {result.text()}")
    if result.code == 0:
        raise Failure(kind, f"ends as if nothing were wrong\n  {result.text()}")
    if not any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", result.stderr) for word in words):
        raise Failure(kind, f"does not name what differs ({words[0]})\n  {result.text()}")
    return kind, "refused"


def may_differ(bench, draw):
    kind = "of their own"
    (bench.output / "copy.txt").write_bytes((bench.input / "text.txt").read_bytes())
    (bench.output / "same.ini").write_text("seed = 1\nlr = 0.01\n")
    common = [*GPT, "--lr", "0.01", "--threads", "1", "--stage", draw.choice("0123")]
    if "reference" not in bench.__dict__:
        bench.must_work("train_gpt", *common, "--log", "out/reference.jsonl")
        bench.reference = losses(check_log(kind, bench.output / "reference.jsonl"))
    first = [*common, "--log", "out/run.jsonl"]
    second = [*first, *draw.choice(OWN)]
    sizes = str(draw.randint(1, 2)), str(draw.randint(1, 2))
    program = bench.program("train_gpt")
    result = bench.run(["mpirun", "-n", sizes[0], program, *first, ":", "-n", sizes[1], program,
                        *second], limit_s=LIMIT_S)
    if result.timed_out or result.code != 0:
        raise Failure(kind, f"refused or hangs\n  {result.text()}")
    if losses(check_log(kind, bench.output / "run.jsonl")) != bench.reference:
        raise Failure(kind, f"other losses than one rank's\n  {result.text()}")
    return kind, "done"


def run_case(bench, draw):
    kind, outcome = may_differ(bench, draw) if draw.random() < 0.15 else must_differ(bench, draw)
    if changed := bench.changed_inputs():
        raise Failure(kind, f"inputs were changed: {changed}")
    return kind, outcome
