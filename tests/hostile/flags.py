"""Odd flags of the programs in BASES: huge, negative and malformed numbers, empty values, paths
that are not files, misspelled, repeated and contradictory flags, and nonsense in --config files.

Expected: exit code 0 after a run that did what was asked, or 1 or 2 with a message that names the
flag, its value or the file. Two other messages are allowed: that a number is not finite, and, from
`tune`, that there is no usable GPU. A refused run leaves an older log as it was."""
import os
import re
import shlex
from decimal import Decimal, InvalidOperation

from common import RATINGS, TINY, WORDLESS, Failure, check_log

BASES = {
    "train_gpt": ["--data", "in/text.txt", *TINY, "--steps", "2", "--log", "out/run.jsonl"],
    "train_resnet": ["--data", "in/mnist", "--batch", "4", "--micro-batch", "2", "--steps", "1",
                     "--eval-every", "0", "--log", "out/run.jsonl"],
    "train_recommender": ["--data", "in/u.data", *RATINGS, "--objective", "ranking", "--steps",
                          "2", "--log", "out/run.jsonl"],
    "recommend": ["--model", "in/recommender/model.safetensors", "--user", "u1"],
    "report": ["--run", "in/run.jsonl", "--out", "out/report.html"],
    "generate": ["--model", "in/gpt/model.safetensors", "--tokens", "3"],
    "predict": ["--model", "in/image/model.safetensors", "--images", "in/picture.png"],
    "tune": ["--layers", "1", "--heads", "1", "--width", "8", "--out", "out/tuned.json"],
    "zero_plan": ["--layers", "2", "--ranks", "4"],
    "checkpoint": ["import", "--file", "in/gpt/model.safetensors", "--dir", "out/imported"],
    "comm_bench": ["--max-bytes", "4KiB", "--iterations", "1", "--warmup", "0"],
}
INPUTS = ("data", "val-data", "init", "tuned", "config", "model", "images", "items", "file",
          "moments", "run")
OUTPUTS = ("log", "trace", "save", "out", "json", "dir", "report", "csv", "tensorboard")
ALIASES = {"batch": "global-batch"}
# Large values of these flags are allowed and only make a run long, so they are not tried.
LONG = ("steps", "tokens", "sample", "epochs", "iterations", "warmup", "eval-batches")

EDGES = ["-1", "0", "-0", "1.5", "1e3", "0x10", "abc", "", " ", "nan", "inf", "+2", "2 ", "1,000",
         "9223372036854775808", "18446744073709551616", "-9223372036854775809", "9" * 40, "\u0663",
         "1\n2", "--", "1 2", "2147483648", "4294967296", "9223372036854775807"]
LARGE = EDGES[-3:]
FLOATS = ["-1", "0", "-0", "1e999", "-1e999", "nan", "-nan", "inf", "1e-45", "1e-400", "3.4e38",
          "1e39", "abc", "", " ", "0,5", "1e", "1.0.0", "--", "1 2"]
QUANTITIES = ["1EiB", "-1", "0", "1e400GB", "GB", "1 GB", "1kb", "nan", "", " ", "1..5MB", "16EiB",
              "9223372036854775807", "9223372036854775808", "5us", "1e-400s", "inf", "\u0661MB"]
PATHS = ["", "in/no_such_file", "in/folder", "in/empty.txt", "in/short.txt", "in/junk.bin",
         "in/pipe", "in/loop", "in/dangling", "in/link.txt", "/dev/null", "/dev/full", "/dev/zero",
         "in/text.txt/x", "in/" + "n" * 300, "in/gpt/config.json", "in/gpt/model.safetensors",
         "in/image/model.safetensors", b"in/\xff\xfe", "in/gpt", ".", "in/u.data",
         "in/recommender/model.safetensors"]
CONTRADICTIONS = {
    "train_gpt": ["--grad-shard bf16", "--width 8 --heads 3", "--global-batch 4 --micro-batch 3",
                  "--lr 0.1 --min-lr 1", "--beta1 1", "--dropout 1", "--vocab 20", "--stage 4"],
    "train_resnet": ["--epochs 1", "--schedule onecycle --warmup 3", "--image-size 9",
                     "--sync-bn --batch 4 --micro-batch 1", "--batch 1000", "--workers 0"],
    "train_recommender": [
        "--epochs 1", "--split none --eval-every 1", "--batch 1000", "--hidden 8,4",
        "--model neumf --hidden 5,3", "--objective rating --loss bpr", "--negatives 0",
        "--objective rating --negatives 3", "--objective rating --sampled-items 3",
        "--objective rating --top 3", "--split fold:1/5 --sampled-items 3", "--split fold:6/5",
        "--eval-every 1 --sampled-items 99", "--columns user,user"],
    "recommend": ["--top 0", "--user nobody", "--model in/gpt/model.safetensors", "--threads -1",
                  "--model in/image/model.safetensors", "--items in/no_such_file"],
    "report": ["--names one,two", "--run in/text.txt", "--run in/no_such_file", "--run in/u.data"],
    "generate": ["--prompt x --prompt-tokens 1", "--prompt-tokens 256", "--prompt-tokens 1,,2",
                 "--prompt-tokens -1", "--temperature -1", "--top-k -1"],
    "predict": ["--top 0", "--model in/gpt/model.safetensors", "--images in/text.txt"],
    "tune": ["--micro-batch 0", "--width 8 --heads 3"],
    "zero_plan": ["--bandwidth 1GB", "--flops 1T", "--ranks 0", "--width 8 --heads 3"],
    "checkpoint": ["--step -1", "--moments in/gpt/model.safetensors", "--optimizer lbfgs",
                   "--dir in/gpt", "--shard-bytes 1"],
    "comm_bench": ["--min-bytes 1MB --max-bytes 1KB", "--max-bytes 4EB", "--factor 1",
                   "--iterations 0", "--collective all_reduce --dtype bf16"],
}
# Text of a --config file -> True if it must be refused, False if it should be accepted (which no
# check tests), None if both are allowed.
LINES = {
    "stpes = 3": True, "recompute = 7": True, "seed = 2\nseed = 3": True, "no sense here": True,
    "seed =": True, "= 3": True, "warmup = 2 3": True, "{": True, "lr = \"": True,
    "warmup = 99999999999999999999": True, "stage = 7": True, "seed = -1": True,
    "precision = fp8": True, "# a comment": False, "": False, "seed = 3": False,
    "optimizer = \"sgd\"": False, "\ufeffseed = 3": None, "[section]": None, "lr = 1e-3 # x": None,
    "seed: 3": True, "warmup = 1;": None, "seed = 3\r": None, "--seed = 3": None, "\0": None,
}


def command_of(program):
    """Returns a list with the program's subcommand. The list is empty for most programs."""
    first = BASES[program][:1]
    return [] if first[0].startswith("--") else first


class Command:
    """A command line under construction. A refusal must name one of `words`, or an input file."""

    def __init__(self, program, flags):
        self.program, self.flags = program, flags
        self.arguments = list(BASES[program])
        given = self.arguments[len(command_of(program)):]
        names = (ALIASES.get(a[2:], a[2:]) for a in given[::2])
        self.values = dict(zip(names, given[1::2]))
        self.words, self.environment = [], {}
        # Flag or kind of error -> True if the program must refuse it. If a flag is given several
        # times, only its last value counts.
        self.never = {}

    def add(self, draw, flag, value, never=False):
        self.never[flag] = never
        text = os.fsdecode(value)
        if draw.random() < 0.5 or text.startswith("-"):
            self.arguments.append(f"--{flag}={text}")
        else:
            self.arguments += [f"--{flag}", text]
        self.values[flag] = text
        self.words += [flag, flag.replace("-", " "), text, os.path.basename(text)]
        self.words += [] if text else ["is empty"]
        self.words += ["config.json"] if flag in ("model", "init", "file") else []


def flags_of(bench, program):
    """Returns {flag: (type, choices)} from the help. Type is '' for flags without a value."""
    help_text = bench.must_work(program, *command_of(program), "--help").stdout
    found = {}
    for line in help_text.splitlines():
        match = re.match(r"  (\S*--\S+)(?: ([A-Z]+)(?::\{(\S+)\})?)?", line)
        if match:
            name = match[1].split("--")[1].split(",")[0]
            found[name] = (match[2] or "", match[3].split(",") if match[3] else [])
    for name in ("help", "version"):
        found.pop(name, None)
    if len(found) < 5:
        raise Failure(program, f"no flags in its help:\n{help_text}")
    return found


def odd_value(draw, command):
    flag = draw.choice(sorted(command.flags))
    kind, choices = command.flags[flag]
    never = False
    if flag == "config":
        return config_file(draw, command)
    if flag in INPUTS or flag in OUTPUTS:
        return odd_path(draw, command, flag)
    if choices:
        value = draw.choice(["", " ", choices[0].upper(), choices[0] + ",", "no_such", *choices])
        never = value not in choices
    elif kind == "INT" and flag != "bucket-bytes":
        value = draw.choice([v for v in EDGES if flag not in LONG or v not in LARGE])
    elif kind == "FLOAT":
        value = draw.choice(FLOATS)
    elif kind == "":
        value = draw.choice(["7", "", "maybe", "true", "false"])
        never = value in ("7", "maybe")
    else:
        value = draw.choice(QUANTITIES)
    command.add(draw, flag, value, never or (kind in ("INT", "FLOAT") and not value.strip()))
    return "value"


def odd_path(draw, command, flag=None):
    names = sorted(n for n in command.flags if n in INPUTS + OUTPUTS and n != "config")
    if not names:
        return odd_value(draw, command)
    flag = flag or draw.choice(names)
    if flag in INPUTS:
        command.add(draw, flag, draw.choice(PATHS))
        return "input"
    read = [command.values[name] for name in INPUTS if command.values.get(name)]
    linked = ["in/link.txt"] if command.values.get("data") == "in/text.txt" else []
    written = [command.values[name] for name in OUTPUTS if command.values.get(name)]
    command.add(draw, flag, draw.choice(
        [*read, *linked, *written, "", "out/none/x", "out", "in/pipe", "/dev/null", "/dev/full",
         "out/" + "n" * 300, "in/text.txt/x", "in/loop", b"out/\xff", "out/new.safetensors"]))
    return "output"


def config_file(draw, command):
    if "config" not in command.flags:
        return odd_value(draw, command)
    lines = draw.choices(sorted(LINES), k=draw.choice([1, 1, 2, 3]))
    path = "out/odd.ini"
    command.config = "\n".join(lines) + "\n"
    command.words += re.findall(r"\w+", command.config)
    command.add(draw, "config", path, any(LINES[line] for line in lines))
    return "config"


def misspelled(draw, command):
    flag = draw.choice(sorted(name for name in command.flags if len(name) > 3))
    at = draw.randrange(len(flag) - 1)
    wrong = draw.choice([flag[:at] + flag[at + 1] + flag[at] + flag[at + 2:],
                         flag[:at] + flag[at + 1:], flag + "x", flag.upper(), "no-such-flag"])
    if wrong in command.flags:
        wrong = "no-such-flag"
    command.arguments += draw.choice([[f"--{wrong}", "2"], [f"--{wrong}=2"], [f"--{wrong}"]])
    command.words += ["--" + wrong]
    command.never["misspelled"] = True
    return "misspelled"


def without_value(draw, command):
    flag = draw.choice(sorted(name for name, (kind, _) in command.flags.items() if kind))
    command.arguments.append(f"--{flag}")
    command.words.append(flag)
    command.never["no value"] = True
    return "no value"


def contradiction(draw, command):
    given = shlex.split(draw.choice(CONTRADICTIONS[command.program]))
    command.arguments += given
    command.words += given + [word.lstrip("-").replace("-", " ") for word in given]
    command.never["contradiction"] = True
    return "contradiction"


def threads(draw, command):
    value = draw.choice(["0", "-1", "99999", "abc", "", "1,2", "4294967297", " 1", "1e3"])
    command.environment["OMP_NUM_THREADS"] = value
    command.words += ["OMP_NUM_THREADS", "thread", "threads"]
    return "OMP_NUM_THREADS"


def check(kind, bench, command, result):
    def fail(text):
        raise Failure(kind, f"{text}\n  {result.text()}")
    if result.timed_out or result.code not in (0, 1, 2):
        fail("neither done nor refused")
    read = {os.path.realpath(bench.root / command.values[name])
            for name in INPUTS if command.values.get(name)}
    init = command.values.get("init")
    goes_on = init and init == command.values.get("save")  # if true, the run may change init
    own = {os.path.realpath(bench.root / name) for name in
           (init, os.path.join(os.path.dirname(init), "config.json"))} if goes_on else set()
    lost = [name for name in bench.changed_inputs() if
            os.path.realpath(bench.input / name) not in own and
            (os.path.realpath(bench.input / name) in read or "mnist" in name)]
    if lost:
        fail(f"inputs were changed: {lost}")
    if left := bench.left_behind():
        fail(f"left behind: {left}")
    if any(text in result.stderr for text in WORDLESS):
        fail("a text that tells a user nothing")
    if result.code == 0:
        if any(command.never.values()):
            fail("taken, though it cannot be meant")
        check_done(kind, bench, command, fail)
        return "done"
    check_kept(bench, command, result, fail)
    files = [value for name, value in command.values.items() if name in INPUTS]
    words = [word for word in command.words + files if word.strip()]
    # Only lines with errors are searched, because other messages also contain names of files.
    refusal = "\n".join(line for line in re.split(r"[\r\n]+", result.stderr)
                        if re.match(r"error: |rank \d+", line))
    names = any(re.search(rf"(?<!\w){re.escape(word)}(?!\w)", refusal) for word in words)
    if not names and "not finite" not in refusal and not (
            command.program == "tune" and re.search(r"CUDA|no usable GPU", refusal)):
        fail("the refusal names neither flag nor value nor file")
    return "refused"


def put_older_log(bench, command):
    """Copies the log of another run to the path given with --log, if this path is out/run.jsonl."""
    if command.values.get("log") != "out/run.jsonl":
        return
    command.older_log = (bench.root / "pristine/run.jsonl").read_bytes()
    (bench.output / "run.jsonl").write_bytes(command.older_log)


def check_kept(bench, command, result, fail):
    """Fails if a refused run has changed an older log. A run that ends with exit code 1 may have
    failed in a step, after it had begun a new log."""
    if not hasattr(command, "older_log"):
        return
    log = bench.output / "run.jsonl"
    text = log.read_bytes() if log.is_file() else b""
    began = (result.code == 1 and text.startswith(b'{"type":"header"') and
             (b'"type":"step"' in text or re.search(r"step \d+|not finite", result.stderr)))
    if text != command.older_log and not began:
        fail("the refused run has changed an older log")


def check_done(kind, bench, command, fail):
    log = bench.root / command.values.get("log", "")
    prints_alone = any(a.startswith(("--plan", "--version")) for a in command.arguments)
    if not log.is_file() or prints_alone or "train" not in command.program:
        return
    header = check_log(kind, log)[0]
    for flag, value in command.values.items():
        if command.flags[flag][0] != "INT":
            continue
        if not re.fullmatch(r"\s*[-+]?(\d+|0x[0-9a-fA-F]+)\s*", value, re.ASCII):
            if flag != "bucket-bytes":
                fail(f"--{flag} is {value!r}, which is no whole number")
            continue
        name = flag.replace("-", "_")
        ran = header.get("model", {}).get(name) if name in header.get("model", {}) else (
            header.get(name))
        if isinstance(ran, (int, float)) and ran != int(value, 0) and not (
                name in ("threads", "image_size") and int(value, 0) == 0):
            fail(f"--{flag} {value} ran as {ran}")
    check_decimals(command, header, fail)


def check_decimals(command, header, fail):
    for flag, value in command.values.items():
        ran = header.get(flag.replace("-", "_"))
        if command.flags[flag][0] != "FLOAT" or not isinstance(ran, (int, float)):
            continue
        try:
            asked = Decimal(value.strip())
        except InvalidOperation:
            fail(f"--{flag} is {value!r}, which is no number")
        # `ran` must agree with `asked` to the precision of a 32-bit float. Subnormal numbers have
        # fewer digits.
        if asked.is_finite() and abs(Decimal(ran) - asked) > max(abs(asked) * Decimal("1e-6"),
                                                                 Decimal("1e-44")):
            fail(f"--{flag} {value} ran as {ran}")


def run_case(bench, draw):
    program = draw.choice(["train_gpt"] * 5 + ["train_recommender", "train_resnet"] * 2 +
                          sorted(BASES))
    if program not in bench.__dict__.setdefault("flags", {}):
        bench.flags[program] = flags_of(bench, program)
    command = Command(program, bench.flags[program])
    odd = [odd_value] * 6 + [odd_path] * 3 + [config_file] * 2 + [
        misspelled, without_value, contradiction, threads]
    kinds = [draw.choice(odd)(draw, command) for _ in range(draw.choice([1, 1, 1, 2, 3]))]
    if hasattr(command, "config"):
        (bench.output / "odd.ini").write_bytes(command.config.encode())
    line = [bench.program(program), *command.arguments]
    ranks = program in ("comm_bench", "train_gpt", "train_recommender", "train_resnet") and (
        draw.random() < 0.1)
    if kinds[-1] != "contradiction":  # later arguments may have resolved the contradiction
        command.never.pop("contradiction", None)
    if kinds[-1] != "no value":  # the next argument has become the flag's value
        command.never.pop("no value", None)
    if draw.random() < 0.5:
        put_older_log(bench, command)
    result = bench.run(["mpirun", "-n", "2", *line] if ranks else line,
                       environment=command.environment)
    kind = kinds[0] if len(kinds) == 1 else "several"
    return kind, check(kind, bench, command, result)
