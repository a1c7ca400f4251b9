"""Faults during a run: ranks and launchers that are killed or stopped, disks that are full, data
that shrinks, folders that go away, closed descriptors.

Expected: the run ends in bounded time, either with exit code 0 and the weights of an undisturbed
run, or with a nonzero code and a message about what happened. (A killed launcher, a run without
stderr, or a run that is killed while it saves, need not leave a message. Data that changes may
change the weights.) Inputs are unchanged. If the launcher is killed, all ranks end within 20 s.
Once the next run has saved under the same name, no temporary file is left."""
import os
import pathlib
import re
import shutil
import signal
import time

from common import RATINGS, TINY, WORDLESS, Failure, check_log, session_members

LIMIT_S = 30
TIMEOUT_S = "3"  # --comm-timeout of the runs whose ranks are stopped
PROGRAMS = ("train_gpt", "train_recommender", "train_resnet")
STEPS = 12
CHECKPOINT = pathlib.Path(__file__).resolve().parents[1] / "fixtures/checkpoints/1"
BASES = {
    "train_gpt": ["--data", "out/data/text.txt", *TINY],
    "train_resnet": ["--data", "out/data/mnist", "--batch", "4", "--micro-batch", "2",
                     "--eval-every", "0"],
    "train_recommender": ["--data", "out/data/u.data", *RATINGS],
}


class Run:
    """A training run that a case disturbs, and its files. It saves weights at its end."""

    def __init__(self, bench, draw, kind, steps=STEPS, ranks=None, program=None):
        self.bench, self.draw, self.kind = bench, draw, kind
        self.program = program or draw.choice([*PROGRAMS, "train_gpt"])
        self.ranks = draw.randint(1, 3) if ranks is None else ranks
        self.steps = steps
        for name in ("data", "save"):
            (bench.output / name).mkdir()
        shutil.copy(bench.input / "text.txt", bench.output / "data/text.txt")
        shutil.copy(bench.input / "u.data", bench.output / "data/u.data")
        shutil.copytree(bench.input / "mnist", bench.output / "data/mnist")
        self.save = bench.output / "save/model.safetensors"
        self.log = bench.output / "run.jsonl"
        self.arguments = [*BASES[self.program], "--steps", str(steps), "--stage",
                          draw.choice("0123"), "--save", "out/save/model.safetensors", "--log",
                          "out/run.jsonl"]

    def command(self):
        alone = [self.bench.program(self.program), *self.arguments]
        return alone if self.ranks == 1 else ["mpirun", "-n", str(self.ranks), *alone]

    def start(self, **settings):
        self.process = self.bench.start(self.command(), **settings)

    def wait_for_steps(self, count):
        """Waits until `count` steps are done, or the run has ended, but at most LIMIT_S."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                if self.log.read_bytes().count(b'"type":"step"') >= count:
                    return
            except OSError:
                pass
            time.sleep(0.005)

    def members(self):
        """Returns the process ids of the ranks."""
        return [number for number, name in session_members(self.process.pid)
                if name == self.program[:15]]

    def end(self):
        result = self.bench.wait(self.process, LIMIT_S)
        if result.timed_out:
            raise Failure(self.kind, f"hangs\n  {result.text()}")
        return result

    def fail(self, text, result):
        raise Failure(self.kind, f"{text}\n  {result.text()}")

    def check(self, result, words, may_end=True, wordless=()):
        """Checks that the run has saved the right weights, or has failed with a message that
        matches one of `words`. If not `may_end`, the run must fail. A signal may end the run only
        if the signal is in `wordless`."""
        if result.code == 0:
            if not may_end:
                self.fail("ends as if nothing had happened", result)
            self.check_weights(result)
            return "done"
        if result.code < 0 and -result.code not in wordless:
            self.fail("ended by a signal", result)
        if any(text in result.stderr for text in WORDLESS):
            self.fail("a text that tells a user nothing", result)
        if not any(re.search(word, result.stderr) for word in words):
            self.fail(f"says none of {words}", result)
        return "failed"

    def check_weights(self, result):
        """The saved weights must be those of an undisturbed run of one rank."""
        references = self.bench.__dict__.setdefault("references", {})
        name = f"{self.program} {self.steps}"
        if name not in references:
            arguments = list(self.arguments)
            arguments[arguments.index("--save") + 1] = "out/reference.safetensors"
            arguments[arguments.index("--log") + 1] = "out/reference.jsonl"
            for at, argument in enumerate(arguments):
                if argument.startswith("out/data/"):
                    arguments[at] = argument.replace("out/data/", "in/")
            self.bench.must_work(self.program, *arguments)
            references[name] = (self.bench.output / "reference.safetensors").read_bytes()
        saved = [path for path in self.bench.output.rglob("model*.safetensors*")]
        if not any(path.read_bytes() == references[name] for path in saved):
            self.fail("exit code 0, and the weights of an undisturbed run are nowhere", result)

    def save_again(self):
        """Saves under the same name again; no temporary file may be left."""
        (self.bench.output / "save").mkdir(exist_ok=True)
        arguments = [*BASES[self.program], "--steps", "1", "--save", "out/save/model.safetensors"]
        arguments = [a.replace("out/data/", "in/") for a in arguments]
        result = self.bench.run([self.bench.program(self.program), *arguments])
        if result.code != 0 or not self.save.exists():
            self.fail("the next run cannot save", result)
        if left := self.bench.left_behind():
            self.fail(f"the next save leaves {left}", result)


def killed_rank(bench, draw):
    run = Run(bench, draw, "killed rank", steps=10**8, ranks=draw.randint(2, 4))
    run.start()
    run.wait_for_steps(draw.choice([0, 1, 1, 5, 20]))
    time.sleep(draw.random() * 0.1)
    number = draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT])
    if members := run.members():
        os.kill(draw.choice(members), number)
    else:  # no rank has started yet
        os.kill(run.process.pid, signal.SIGTERM)
    result = run.end()
    run.save_again()
    return run.kind, run.check(result, [r"rank \d", r"signal", r"killed|terminat|abort"],
                               may_end=False, wordless=[signal.SIGTERM])


def stopped_rank(bench, draw):
    run = Run(bench, draw, "stopped rank", steps=10**8, ranks=draw.randint(2, 4))
    run.arguments += ["--comm-timeout", TIMEOUT_S]
    run.start()
    run.wait_for_steps(draw.choice([1, 2, 10]))
    if members := run.members():
        os.kill(draw.choice(members), signal.SIGSTOP)
    result = run.end()
    run.save_again()
    return run.kind, run.check(result, [r"rank \d.*(timeout|within|progress|not come|stopped)"],
                               may_end=False)


def killed_launcher(bench, draw):
    run = Run(bench, draw, "killed launcher", steps=10**8, ranks=draw.randint(2, 3))
    run.start()
    run.wait_for_steps(draw.choice([1, 3, 10]))
    number = draw.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    os.kill(run.process.pid, number)
    end = time.monotonic() + 20
    while run.members() and time.monotonic() < end:
        time.sleep(0.05)
    left = run.members()
    result = run.end()
    if left:
        run.fail(f"{len(left)} ranks go on 20 s after mpirun was ended by {number}", result)
    run.save_again()
    return run.kind, "failed"


def told_to_end(bench, draw):
    """On SIGTERM or SIGINT, a program without mpirun must say which step it finished last."""
    run = Run(bench, draw, "told to end", steps=10**8, ranks=1)
    run.start()
    run.wait_for_steps(draw.choice([1, 2, 10]))
    number = draw.choice([signal.SIGTERM, signal.SIGINT])
    os.kill(run.process.pid, number)
    result = run.end()
    run.save_again()
    words = [r"told to end; (last finished step \d+|no step finished yet)"]
    return run.kind, run.check(result, words, may_end=False, wordless=[number])


def lost_stdout(bench, draw):
    kind = "full stdout"
    commands = {
        "train_gpt": ["--data", "in/text.txt", *TINY, "--steps", "1"],
        "train_resnet": [*BASES["train_resnet"], "--steps", "1"],
        "train_recommender": [*BASES["train_recommender"], "--steps", "1"],
        "recommend": ["in/recommender/model.safetensors", "u1"],
        "generate": ["in/gpt/model.safetensors", "--tokens", "2"],
        "predict": ["in/image/model.safetensors", "in/picture.png"],
        "zero_plan": draw.choice([[], ["--json", "-"]]),
        "checkpoint": ["inspect", str(CHECKPOINT), *draw.choice([[], ["--json"]])],
        "comm_bench": ["--max-bytes", "2KiB", *draw.choice([[], ["--json", "-"]])],
    }
    program = draw.choice(sorted(commands))
    arguments = [a.replace("out/data/", "in/") for a in commands[program]]
    way = draw.choice([["--help"], arguments, arguments])
    result = bench.run([bench.program(program), *way], stdout="/dev/full")
    if result.timed_out or result.code not in (1, 2):
        raise Failure(kind, f"a lost output is no success\n  {result.text()}")
    if not re.search(r"stdout|standard output|output|No space", result.stderr):
        raise Failure(kind, f"does not say that its output is lost\n  {result.text()}")
    return kind, "failed"


def closed_descriptors(bench, draw):
    """If stdin, stdout or stderr is closed, the next file that the program opens gets the closed
    descriptor's number. Output must not go to that file."""
    run = Run(bench, draw, "closed descriptors", ranks=1)
    closed = draw.choice([(1,), (2,), (1, 2), (0,), (0, 1, 2)])
    run.start(closed=closed)
    result = run.end()
    if run.log.exists() and run.log.stat().st_size > 0:
        check_log(run.kind, run.log, complete=result.code == 0)
    words = [r""] if 2 in closed else [r"stdout|output|closed|descriptor"]
    outcome = run.check(result, words)
    run.save_again()
    return run.kind, outcome


def full_log(bench, draw):
    run = Run(bench, draw, "full disk")
    flag = draw.choice(["--log", "--trace"])
    run.arguments += [flag, "/dev/full"]
    run.start()
    result = run.end()
    outcome = run.check(result, [r"/dev/full"])
    if "/dev/full" not in result.stderr:
        run.fail(f"{flag} is lost without a word", result)
    run.save_again()
    return run.kind, outcome


def file_limit(bench, draw):
    # MPI writes files that the limit would affect, too. So one rank runs without mpirun.
    run = Run(bench, draw, "file size limit", ranks=1)
    old = bench.input / "gpt/model.safetensors"
    had = draw.random() < 0.5
    if had:
        shutil.copy(old, run.save)
    run.start(file_bytes=draw.choice([0, 1, 100, 4096, 10000, 100000]))
    result = run.end()
    outcome = run.check(result, [r"model\.safetensors|run\.jsonl|config\.json|stdout|output"])
    if had and result.code != 0 and run.save.read_bytes() != old.read_bytes():
        run.fail("the weights that were there are damaged", result)
    run.save_again()
    return run.kind, outcome


def shrinking_data(bench, draw):
    run = Run(bench, draw, "data that changes", program="train_gpt", steps=draw.choice([200, 2000]))
    run.start()
    run.wait_for_steps(draw.choice([0, 1, 5]))
    data = bench.output / "data/text.txt"
    way = draw.choice(["cut", "cut", "empty", "replaced", "longer", "gone"])
    if way in ("cut", "empty"):
        os.truncate(data, 0 if way == "empty" else draw.choice([100, 4096, 10000]))
    elif way == "replaced":
        (bench.output / "other").write_bytes(b"x" * 20000)
        os.replace(bench.output / "other", data)
    elif way == "longer":
        with open(data, "ab") as file:
            file.write(b"more" * 5000)
    else:
        data.unlink()
    result = run.end()
    # The change may come before or after the program opens the file, so each of these errors is
    # right. A file that is replaced or extended after it was opened is no error.
    errors = r"text\.txt: (has become shorter|cannot be opened|is empty|has \d+ tokens)"
    outcome = run.check(result, [errors]) if result.code != 0 else "done"
    if result.code == 0:
        check_log(run.kind, run.log)
    run.save_again()
    return run.kind, outcome


def missing_folder(bench, draw):
    run = Run(bench, draw, "removed folder", steps=400)
    run.start()
    run.wait_for_steps(draw.choice([1, 5, 50]))
    shutil.rmtree(bench.output / "save")
    result = run.end()
    outcome = run.check(result, [r"model\.safetensors|out/save"])
    run.save_again()
    return run.kind, outcome


def unreadable(bench, draw):
    """Passes a file without permissions. Root can read such a file, so root gets a path that no
    user can read as a file."""
    run = Run(bench, draw, "unreadable", ranks=draw.choice([1, 2]))
    path = draw.choice(["/proc/self/mem", "in/folder", "in/dangling", "in/loop", "in/pipe"])
    if os.getuid() != 0:
        (bench.output / "locked").write_bytes(b"text" * 1000)
        (bench.output / "locked").chmod(0)
        path = "out/locked"
    flag = draw.choice(["--data", "--init", "--config"])
    if flag == "--config" and path == "/proc/self/mem":  # reads as empty, which is no error
        path = "in/folder"
    run.arguments += [flag, path]
    run.start()
    result = run.end()
    outcome = run.check(result, [re.escape(path)], may_end=False)
    run.save_again()
    return run.kind, outcome


def killed_save(bench, draw):
    """Kills the ranks as soon as the temporary file exists, or shortly after."""
    run = Run(bench, draw, "killed while it saves", ranks=draw.choice([1, 1, 2]))
    shutil.copy(bench.input / "image/model.safetensors", run.save)
    before = run.save.read_bytes()
    run.start()
    end = time.monotonic() + LIMIT_S
    while run.process.poll() is None and time.monotonic() < end:
        # The program also creates a temporary file at its start, to test whether it can write in
        # the folder. So this loop waits for the last steps.
        if run.log.exists() and b'"step":11' in run.log.read_bytes() and bench.left_behind():
            time.sleep(draw.random() * 0.01)
            for member in run.members() or [run.process.pid]:
                os.kill(member, signal.SIGKILL)
            break
        time.sleep(0.0005)
    result = run.end()
    if result.code != 0 and run.save.read_bytes() != before:
        run.check_weights(result)
    run.save_again()
    return run.kind, "done" if result.code == 0 else "failed"


FAULTS = [killed_rank, killed_rank, stopped_rank, killed_launcher, told_to_end, lost_stdout,
          closed_descriptors, full_log, file_limit, file_limit, shrinking_data, missing_folder,
          unreadable, killed_save]


def run_case(bench, draw):
    kind, outcome = draw.choice(FAULTS)(bench, draw)
    if changed := bench.changed_inputs():
        raise Failure(kind, f"inputs were changed: {changed}")
    return kind, outcome
