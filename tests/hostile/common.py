"""Code that the hostile cases share: a bench with input files, runs with a time limit, and checks
after each run."""
import hashlib
import json
import math
import os
import pathlib
import random
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import time
import zlib

MPI_SETTINGS = pathlib.Path(__file__).resolve().parents[2] / "scripts/mpi.env"
ADDRESS_SPACE = 8 << 30
# Messages of a library or a runtime that do not help a user.
WORDLESS = ("std::bad_alloc", "std::bad_cast", "terminate called", "basic_string::", "vector::_M",
            "map::at", "stoi", "stol", "std::length_error", "cannot create std::vector")
TINY = ["--layers", "1", "--heads", "1", "--width", "8", "--context", "8", "--global-batch", "4",
        "--micro-batch", "2", "--eval-every", "0"]
RATINGS = ["--batch", "4", "--micro-batch", "2", "--factors", "2", "--eval-every", "0"]


class Failure(Exception):
    def __init__(self, kind, text):
        super().__init__(text)
        self.kind = kind


class Result:
    def __init__(self, command, code, stdout, stderr, timed_out, seconds):
        self.command = command
        self.code = code
        self.stdout = os.fsdecode(stdout)
        self.stderr = os.fsdecode(stderr)
        self.timed_out = timed_out
        self.seconds = seconds

    def text(self):
        end = f"no end within {self.seconds:.0f} s" if self.timed_out else f"exit code {self.code}"
        said = self.stderr.strip()
        said = said if len(said) < 1200 else said[:700] + "\n  ...\n" + said[-400:]
        return f"{end}: {shown(self.command)}\n  " + said.replace("\n", "\n  ")


def shown(command):
    return " ".join(shlex.quote(os.fsdecode(word)) for word in command)


def png(side):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I",
                                                                        zlib.crc32(kind + data))
    rows = (b"\0" + bytes(range(3 * side))) * side
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", side, side, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def state_of(folder):
    """Returns {path: digest of a file, target of a link, or kind of any other entry}."""
    state = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            what = os.readlink(path)
        elif path.is_file():
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            what = "folder" if path.is_dir() else "other"
        state[str(path.relative_to(folder))] = what
    return state


def session_members(session):
    """Returns the processes of a session that still run, as (id, name). The ranks of a job are
    children of mpirun, and belong to the session of mpirun."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
        if int(rest[3]) == session and rest[0] not in "ZX":
            found.append((int(stat.parent.name), name))
    return sorted(found)


class Bench:
    """The folders in/ (the inputs, see changed_inputs) and out/ (new in each case) below `root`."""

    def __init__(self, root, programs, prints):
        self.root, self.programs, self.prints = root, programs, False
        self.input, self.output = root / "in", root / "out"
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "",
                            "TESSERA_EMULATED_DEVICES": "0"}
        for line in MPI_SETTINGS.read_text().splitlines():
            if line[:1].isupper():
                name, value = line.split("=", 1)
                self.environment[name] = value
        self.input.mkdir()
        self.begin()
        self.make_inputs()
        shutil.copytree(self.input, root / "pristine", symlinks=True)
        self.inputs = state_of(self.input)
        os.mkfifo(self.input / "pipe")
        self.prints = prints

    def make_inputs(self):
        draw = random.Random(1)
        words = ["one", "two", "three\n", "four", "five"]
        text = " ".join(draw.choice(words) for _ in range(4000)).encode()
        files = {"text.txt": text, "other.txt": text[::-1], "val.txt": text[:3000],
                 "empty.txt": b"", "short.txt": b"abc", "junk.bin": draw.randbytes(999),
                 "picture.png": png(8),
                 "tokens.bin": b"".join(struct.pack("<H", i % 200) for i in range(2000))}
        for name, data in files.items():
            (self.input / name).write_bytes(data)
        os.symlink("text.txt", self.input / "link.txt")
        os.symlink("loop", self.input / "loop")
        os.symlink("nowhere", self.input / "dangling")
        for name, first in (("u.data", 1), ("other.data", 2)):
            lines = [f"u{user}\t{item}\t{draw.randint(1, 5)}\t{880000000 + 20 * user + item}\n"
                     for user in range(12) for item in range(first + user % 3, 20, 2)]
            (self.input / name).write_text("".join(lines))
        (self.input / "folder").mkdir()
        mnist = self.input / "mnist"
        mnist.mkdir()
        (mnist / "t10k-images-idx3-ubyte").write_bytes(
            struct.pack(">4I", 0x803, 20, 8, 8) + draw.randbytes(1280))
        (mnist / "t10k-labels-idx1-ubyte").write_bytes(
            struct.pack(">2I", 0x801, 20) + bytes(i % 10 for i in range(20)))
        for name in ("gpt", "gpt2", "image", "recommender", "recommender2"):
            (self.input / name).mkdir()
        for number, folder in enumerate(("gpt", "gpt2")):
            self.must_work("train_gpt", *TINY, "--data", "in/text.txt", "--steps", "2", "--seed",
                           str(number), "--save", f"in/{folder}/model.safetensors", "--log",
                           "in/run.jsonl")
        self.must_work("train_resnet", "--data", "in/mnist", "--batch", "4", "--micro-batch", "2",
                       "--steps", "1", "--eval-every", "0", "--save", "in/image/model.safetensors")
        for number, folder in enumerate(("recommender", "recommender2")):
            self.must_work("train_recommender", "--data", "in/u.data", *RATINGS, "--steps", "2",
                           "--seed", str(number), "--save", f"in/{folder}/model.safetensors")

    def program(self, name):
        return str(self.programs / name)

    def must_work(self, name, *arguments, limit_s=60):
        result = self.run([self.program(name), *arguments], limit_s=limit_s)
        if result.code != 0:
            raise Failure("a plain run", result.text())
        return result

    def begin(self):
        shutil.rmtree(self.output, ignore_errors=True)
        self.output.mkdir()

    def start(self, command, environment=None, file_bytes=None, stdout=None, closed=()):
        """Starts a process in a session of its own. Its output goes to files below the root, except
        that its stdout goes to the file `stdout` if one is given. If file_bytes limits the size of
        files, the output goes to pipes. The pipes are read after the process has ended, so they
        must have room for all of its output."""
        def prepare():
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
            if file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
            for descriptor in closed:
                os.close(descriptor)
        with open(self.root / "stdout", "wb") as out, open(self.root / "stderr", "wb") as errors:
            target = open(stdout, "wb") if stdout else out
            pipes = subprocess.PIPE if file_bytes is not None else None
            process = subprocess.Popen(
                command, cwd=self.root, env={**self.environment, **(environment or {})},
                stdin=subprocess.DEVNULL, stdout=pipes or target, stderr=pipes or errors,
                start_new_session=True, preexec_fn=prepare)
            if stdout:
                target.close()
        process.begin = time.monotonic()
        process.command = command
        return process

    def wait(self, process, limit_s):
        timed_out = False
        try:
            process.wait(max(0.1, limit_s))
        except subprocess.TimeoutExpired:
            timed_out = True
        seconds = time.monotonic() - process.begin
        self.end_session(process.pid)
        process.wait()
        texts = [pipe.read() if pipe else (self.root / name).read_bytes()
                 for pipe, name in ((process.stdout, "stdout"), (process.stderr, "stderr"))]
        result = Result(process.command, process.returncode, *texts, timed_out, seconds)
        if self.prints:
            print(f"{result.text()}\n  stdout: {result.stdout[-2000:]}")
        return result

    def run(self, command, limit_s=20, **settings):
        return self.wait(self.start(command, **settings), limit_s)

    @staticmethod
    def end_session(session):
        """Kills all processes of a session that this bench has started."""
        for _ in range(50):
            members = session_members(session)
            if not members:
                return
            for process, _ in members:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)

    def changed_inputs(self):
        """Returns the names of inputs that a run has changed. If there are any, restores all
        inputs."""
        now = state_of(self.input)
        now.pop("pipe", None)
        changed = sorted(name for name in now.keys() | self.inputs.keys()
                         if now.get(name) != self.inputs.get(name))
        if changed:
            shutil.rmtree(self.input)
            shutil.copytree(self.root / "pristine", self.input, symlinks=True)
        if not (self.input / "pipe").exists():
            os.mkfifo(self.input / "pipe")
        return changed

    def left_behind(self):
        return [str(path.relative_to(self.root)) for path in self.root.rglob("*.tmp")]


def check_log(kind, path, complete=True):
    """Returns the lines of a log, which must be JSON with finite numbers. If `complete`, a log that
    is not empty must have a line for each step, and a summary which says that the measured bytes
    equal the planned bytes."""
    lines = []
    for line in path.read_text("utf-8", "replace").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise Failure(kind, f"{path.name} has a line that is no JSON: {line[:200]}") from None
    check_finite(kind, lines)
    steps = [line for line in lines if line.get("type") == "step"]
    if any(line["lr"] < 0 for line in steps):
        raise Failure(kind, "the log has a negative learning rate")
    if complete and lines:
        if len(steps) != lines[0].get("steps") or lines[-1].get("type") != "summary":
            raise Failure(kind, f"exit code 0, and the log has {len(steps)} of "
                                f"{lines[0].get('steps')} steps and ends with {lines[-1]}")
        if not lines[-1]["equal"]:
            raise Failure(kind, "planned and measured differ")
    return lines


def check_finite(kind, value):
    if isinstance(value, float) and not math.isfinite(value):
        raise Failure(kind, f"the log has the number {value}")
    if isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            check_finite(kind, part)


def losses(lines):
    return [(line["loss"], line["grad_norm"]) for line in lines if line.get("type") == "step"]
