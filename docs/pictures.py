#!/usr/bin/env python3
"""Draws the pictures of docs/ from runs: docs/pictures/*.svg.

Usage: docs/pictures.py --bin FOLDER [--check]. FOLDER has Tessera's programs. --check stores no
pictures, and fails if a stored picture differs from a new one. The pictures show only byte counts
and the order of calls, which are equal in every run and on every machine.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

DOCS = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent / "course" / "lib"))
sys.dont_write_bytecode = True
from drawing import BLUE, GREEN, GREY, ORANGE, PALE, PURPLE, RANKS, RED, SKY, Figure  # noqa: E402

STAGES = (0, 1, 2, 3)


class Programs:
    """Runs Tessera's programs in a temporary folder."""

    def __init__(self, folder, work):
        self.folder = folder.resolve()
        self.work = work
        # Any text will do: bytes and calls do not depend on it.
        (work / "text.txt").write_text("".join(f"{i * i} " for i in range(4000)))

    def run(self, ranks, program, *arguments):
        command = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        command += [str(self.folder / program), *map(str, arguments)]
        result = subprocess.run(command, cwd=self.work, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**os.environ, "OMP_NUM_THREADS": "1"})
        if result.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{result.stderr}")
        return result.stdout

    def train(self, ranks, stage, *arguments):
        return self.run(ranks, "train_gpt", "--data", "text.txt", "--steps", 3, "--stage", stage,
                        "--eval-every", 0, *arguments)


def number(text):
    return int(text.replace(",", ""))


def ownership(path, _programs):
    figure = Figure(720, 330, "What each of three ranks holds of one bucket at stages 0 to 3: "
                              "parameters, the gradient of a micro-batch, sums and state")
    titles = ("parameters", "gradient", "sums", "state")
    for i, title in enumerate(titles):
        figure.text(160 + i * 145, 24, title, 13, weight="bold")
    # What a rank holds, for each stage and each title. 0: only its own shard. 1: the whole. 2: the
    # whole, but only for a short time. Of the parameters at stage 3, the rank holds only the other
    # ranks' shards for a short time, and its own shard all the time.
    held = ((1, 1, 0, 1), (1, 1, 0, 0), (1, 2, 0, 0), (2, 2, 0, 0))
    for stage in STAGES:
        top = 38 + stage * 68
        figure.text(15, top + 30, f"stage {stage}", weight="bold")
        for rank in range(3):
            y = top + rank * 18
            figure.text(85, y + 12, f"rank {rank}", 11)
            for i, kind in enumerate(held[stage]):
                for shard in range(3):
                    own = shard == rank
                    there = kind == 1 or own
                    passing = kind == 2 and (not own or i == 1)
                    figure.box(160 + i * 145 + shard * 40, y, 38, 15,
                               fill=RANKS[shard] if there and not passing else "#ffffff",
                               stroke=RANKS[shard] if there or passing else GREY,
                               dashed=passing)
    figure.text(15, 322, "Dashed: for a short time. The gradient until its bucket is sent, and at "
                         "stage 3 the gathered parameters of a block.", 11)
    figure.write(path)


def ring(path, programs):
    buckets = {b: elements for _, b, elements in steps_of_trace(programs, 2)["ready"]}
    tied = max(buckets)
    last = 3
    length = max(buckets[b] + buckets[b + 1] for b in range(tied - 1))
    figure = Figure(800, 270, "The gradient ring of stages 2 and 3: buckets take its two ends in "
                              "turn, and an end is free when its bucket has been sent")
    scale = 430 / length
    left, beside = 225, 690
    figure.text(left, 22, f"the ring, {length:,} elements", 12, weight="bold")
    figure.text(beside, 22, "beside it", 12, weight="bold")
    for b in range(last + 1):
        top = 34 + b * 48
        figure.text(15, top + 15, f"bucket {b} fills", 13)
        note = ("the first of backward", f"while {b - 1} is sent", f"when {b - 2} has been sent",
                f"when {b - 2} has been sent")[b]
        figure.text(15, top + 31, note, 12)
        figure.box(left, top, length * scale, 34)
        for bucket, fills in ((b - 1, False), (b, True)):
            if bucket >= 0:
                width = buckets[bucket] * scale
                x = left if bucket % 2 == 0 else left + length * scale - width
                figure.box(x, top, width, 34, f"{bucket} {'fills' if fills else 'is sent'}\n"
                           f"{buckets[bucket]:,}", fill=SKY if fills else ORANGE, size=11)
        figure.box(beside, top, buckets[tied] * scale, 34, f"{tied} fills", fill=SKY, size=11)
    figure.text(15, 246, f"Bucket {tied} has the tied table. It fills during the whole of "
                         "backward, so it has a slot of its own.", 12)
    figure.text(15, 262, "(Sizes of nano on two ranks. The ring is as long as the largest pair of "
                         "neighbours.)", 12)
    figure.write(path)


# The parts of the model nano, with their numbers of operations in forward. h.3 includes the final
# norm.
PARTS = {"emb": 1, "h.0": 7, "h.1": 7, "h.2": 7, "h.3": 8, "head": 1}
# A bucket of 1 MiB holds one block of the model. Below stage 3, buckets 0, 1 and 2 also hold one
# parameter of the next bucket's block: the bias of the last operation of that block.
BUCKET = {"h.3": 0, "h.2": 1, "h.1": 2, "h.0": 3}
EMBEDDINGS = (4, 3), (4, 3), (4, 3), (4, 5)  # the buckets of the embeddings at each stage
TIED = (4, 4, 4, 5)  # the bucket of the tied table at each stage


def steps_of_trace(programs, stage, *arguments):
    """Runs three steps on two ranks. Returns what rank 0 does from the update of the first step to
    the update of the second step, in lists that are in the order of the trace: `calls` has (kind,
    purpose, bucket), `updates` has the first step's buckets, and `ready` has the second step's
    (number of operations that have begun, bucket, elements). `operations` is the number of all
    operations of the second step."""
    programs.train(2, stage, "--trace", "trace.json", *arguments)
    events = json.loads((programs.work / "trace.json").read_text())["traceEvents"]
    track = {(e["pid"], e["tid"]): e["args"].get("name")
             for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    result = {"calls": [], "updates": [], "ready": [], "operations": 0}
    step = losses = 0
    events = sorted((e for e in events if e["ph"] in "Xi" and e["pid"] == 0),
                    key=lambda e: (e["ts"], -e.get("dur", 0)))
    computed = [e for e in events if track[0, e["tid"]] == "compute"]
    # Only operations are counted. Their spans contain no other spans, but spans of steps, passes and
    # layers do. The exceptions are dropout layers, which run no operation because nano's dropout is
    # 0, and the ends of steps: these spans contain no others either, so the count below leaves them
    # out by name.
    holds = {id(a) for a, b in zip(computed, computed[1:]) if b["ts"] < a["ts"] + a["dur"]}
    for event in events:
        name, where = event["name"], track[0, event["tid"]]
        detail = event.get("args", {}).get("detail", "")
        bucket = event.get("args", {}).get("bucket", -1)
        if where == "communication":
            purpose = detail.split(",")[0]
            losses += purpose == "losses"
            if losses == 1 and purpose in ("gradients", "parameters"):
                result["calls"].append((name, purpose, bucket))
        elif where == "compute":
            # The picture begins with the update of the first step. That step's span "end of step"
            # contains the update, so the second step is counted from the beginning of this span.
            step += name == "end of step"
            result["operations"] += (step == 1 and id(event) not in holds
                                     and not name.endswith(("dropout", "drop", "end of step")))
        elif where == "buckets" and step == 1 and name == "update":
            result["updates"].append(bucket)
        elif where == "buckets" and step == 1 and name == "ready":
            elements = max(int(end) for end in re.findall(r", (\d+)\)", detail))
            result["ready"].append((result["operations"], bucket, elements))
    return result


class Timeline:
    """Places computing and calls as early as the rules of a stage permit. The lengths are invented,
    so the picture shows only order and waits. timelines() checks the order of the calls against a
    trace."""

    CALL, BLOCK, SMALL = 1.25, 1.0, 0.8

    def __init__(self, stage, trace):
        self.stage = stage
        # The times at which the computing thread and the communication thread are free.
        self.now = self.free = 0.0
        self.computed, self.waits, self.calls, self.phases = [], [], [], []
        self.done = {}  # the end of each call
        self.held = set()  # at stage 3, the buckets whose parameters are gathered at present
        self.update(trace["updates"])
        self.micro_step(trace["ready"])
        self.phases.append(("", self.now))
        self.call("all_gather", "end", "norms")
        self.wait([("all_gather", "end", "norms")])

    def call(self, *call):
        start = max(self.now, self.free)
        self.free = start + self.CALL
        self.done[call] = self.free
        self.calls.append((start, call))

    def wait(self, calls):
        end = max([self.now] + [self.done.get(call, 0.0) for call in calls])
        if end > self.now:
            self.waits.append((self.now, end))
        self.now = end

    def compute(self, text, length):
        self.computed.append((self.now, length, text))
        self.now += length

    def update(self, buckets):
        self.phases.append(("update", self.now))
        if self.stage == 0:
            for b in buckets:
                self.call("all_gather", "gradients", b)
        for b in buckets:
            self.wait([("all_gather", "gradients", b)])
            self.compute(str(b), self.SMALL)
            if self.stage in (1, 2):
                self.call("all_gather", "parameters", b)

    def micro_step(self, ready):
        """`ready` gives, for each bucket, the number of operations after which the bucket is
        sent."""
        ring = [b for _, b, _ in ready if b != TIED[self.stage]]
        begun = 0
        parts = [*PARTS, *reversed(PARTS)]
        for i, name in enumerate(parts):
            forward = i < len(PARTS)
            if i % len(PARTS) == 0:
                self.phases.append(("forward" if forward else "backward", self.now))
            self.wait(self.before(parts, i, ring))
            for operation in range(PARTS[name]):
                split = name in ("h.0", "h.1", "h.2") and operation == (6 if forward else 0)
                if forward and self.stage < 3 and split:
                    self.wait([("all_gather", "parameters", BUCKET[name] - 1)])  # holds the bias
                share = 1 / 8 if name == "h.3" else 0.3 if split else 0.7 / 6
                self.compute(name, share * self.BLOCK if name in BUCKET else self.SMALL)
                begun += 1
                for b in [b for after, b, _ in ready if after == begun]:
                    self.call("exchange", "gradients", b)

    def before(self, parts, i, ring):
        """Returns the calls that part i waits for before it begins. At stage 3, also starts the
        gathers of the buckets that this part and the next part read, unless they are held."""
        reads, following = (self.reads(name) for name in (parts[i], parts[min(i + 1, 11)]))
        if self.stage == 3:
            if parts[i] in BUCKET:
                self.held &= {*reads, *following, *EMBEDDINGS[3]}
            for b in (*reads, *following):
                if b not in self.held:
                    self.call("all_gather", "parameters", b)
                    self.held.add(b)
        needed = [("all_gather", "parameters", b) for b in reads]
        opened = BUCKET.get(parts[i], ring[-1] if parts[i] == "emb" else -1)
        if self.stage >= 2 and i >= len(PARTS) and opened in ring[2:]:
            # Buckets are placed at the two ends of the gradients' memory in turn. So this bucket
            # reuses the memory of the bucket two places earlier in `ring`.
            needed.append(("exchange", "gradients", ring[ring.index(opened) - 2]))
        return needed

    def reads(self, name):
        return (BUCKET[name],) if name in BUCKET else EMBEDDINGS[self.stage]


def joined(cells):
    """Joins neighbouring cells (start, length, text) that have the same text."""
    result = []
    for start, length, text in cells:
        if result and result[-1][2] == text and abs(sum(result[-1][:2]) - start) < 1e-6:
            result[-1][1] += length
        else:
            result.append([start, length, text])
    return result


COLOURS = {("exchange", "gradients"): ORANGE, ("all_gather", "gradients"): PURPLE,
           ("all_gather", "parameters"): SKY, ("all_gather", "end"): GREY}


def timelines(path, programs):
    figure = Figure(940, 452, "What a rank computes and which calls are in flight meanwhile, from "
                              "one update to the next, at stages 0 to 3")
    x0, unit = 82, 31
    for stage in STAGES:
        trace = steps_of_trace(programs, stage, "--bucket-bytes", 1 << 20)
        line = Timeline(stage, trace)
        placed = [call for _, call in line.calls if call[1] != "end"]
        if trace["operations"] != 2 * sum(PARTS.values()) or placed != trace["calls"]:
            sys.exit(f"stage {stage}: the trace has {trace['operations']} operations and the calls "
                     f"{trace['calls']}, the picture would have {placed}")
        top = 12 + stage * 98
        figure.text(10, top + 14, f"stage {stage}", weight="bold")
        figure.text(10, top + 37, "computes", 12)
        figure.text(10, top + 65, "sends", 12)
        for (name, start), (_, end) in zip(line.phases, line.phases[1:]):
            figure.line(x0 + start * unit + 1, top + 18, x0 + end * unit - 3, top + 18)
            figure.text(x0 + (start + end) / 2 * unit, top + 12, name, 12, "middle")
        for start, end in line.waits:
            figure.box(x0 + start * unit, top + 22, (end - start) * unit - 2, 22, fill="#ffffff",
                       stroke=GREY, dashed=True)
        for text, cells in itertools.groupby(joined(line.computed), key=lambda cell: cell[2]):
            longest = max(cells := list(cells), key=lambda cell: cell[1])
            for start, length, _ in cells:
                figure.box(x0 + start * unit, top + 22, length * unit - 2, 22,
                           text if start == longest[0] else "", size=10)
        for start, (kind, purpose, bucket) in line.calls:
            figure.box(x0 + start * unit, top + 50, line.CALL * unit - 2, 22, str(bucket),
                       fill=COLOURS[kind, purpose], size=11)
    legend = (("exchange of gradients", ORANGE, 10), ("all_gather of sums", PURPLE, 190),
              ("all_gather of parameters", SKY, 350), ("losses, flags and norms", GREY, 550))
    for label, colour, x in legend:
        figure.box(x, 408, 14, 14, fill=colour)
        figure.text(x + 20, 420, label, 12)
    figure.box(740, 408, 14, 14, fill="#ffffff", stroke=GREY, dashed=True)
    figure.text(760, 420, "computing waits", 12)
    figure.text(10, 443, "Numbers are buckets: 0 has h.3, 1 has h.2, 2 has h.1, 3 has h.0, the "
                         "others have the embeddings. Lengths have no meaning.", 12)
    figure.write(path)


def memory(path, programs):
    figure = Figure(720, 195, "Peak bytes by category on each of four ranks at stages 0 to 3, "
                              "planned and measured alike")
    # Activations and workspace are left out: they depend on the machine's instruction set, but not
    # on the stage.
    colours = {"parameters": SKY, "gradients": ORANGE, "optimizer_state": GREEN,
               "communication": GREY}
    rows = []
    for stage in STAGES:
        text = programs.train(4, stage)
        values = {}
        for name in colours:
            planned, measured = re.search(rf"^{name} +([\d,]+) +([\d,]+)", text,
                                          re.MULTILINE).groups()
            if planned != measured:
                sys.exit(f"stage {stage}: {name} was planned {planned} and measured {measured}")
            values[name] = number(measured)
        rows.append(values)
    scale = 500 / max(sum(row.values()) for row in rows)
    for stage, values in enumerate(rows):
        top = 15 + stage * 38
        figure.text(15, top + 19, f"stage {stage}", weight="bold")
        x = 85
        for name, value in values.items():
            figure.box(x, top, value * scale, 28, f"{value / 1e6:.1f}", fill=colours[name], size=11)
            x += value * scale
        figure.text(x + 6, top + 19, f"{sum(values.values()):,} bytes", 12)
    for i, (name, colour) in enumerate(colours.items()):
        x, y = 85 + i * 130, 170
        figure.box(x, y, 14, 14, fill=colour)
        figure.text(x + 20, y + 12, name.replace("_", " "), 12)
    figure.text(625, 182, "numbers: MB", 12)
    figure.write(path)


def traffic(path, programs):
    figure = Figure(720, 290, "Bytes that a rank sends in a step against the number of ranks, at "
                              "stages 0, 2 and 3")
    x0, y0, width, height = 90, 230, 500, 195
    points = {}
    for ranks in range(1, 9):
        text = programs.run(1, "zero_plan", "--preset", "nano", "--ranks", ranks, "--batch", ranks,
                            "--micro-batch", 1)
        part = text[text.index("Traffic that rank 0 sends"):]
        for line in part.splitlines():
            fields = line.split()
            if len(fields) > 3 and fields[0] in "0123" and fields[1] == str(ranks):
                points.setdefault(int(fields[0]), []).append((ranks, number(fields[-1])))
    largest = max(value for line in points.values() for _, value in line)
    for megabytes in range(0, int(largest / 1e6) + 1, 2):
        y = y0 - megabytes * 1e6 / largest * height
        figure.line(x0, y, x0 + width, y, GREY, 0.7)
        figure.text(x0 - 8, y + 4, f"{megabytes} MB", 11, "end")
    for ranks in range(1, 9):
        figure.text(x0 + (ranks - 1) * width / 7, y0 + 20, str(ranks), 12, "middle")
    figure.text(x0 + width / 2, y0 + 42, "ranks, each with one micro-batch in a step", 12, "middle")
    for stage, colour in ((0, PURPLE), (2, BLUE), (3, RED)):
        line = [(x0 + (ranks - 1) * width / 7, y0 - value / largest * height)
                for ranks, value in points[stage]]
        for (xa, ya), (xb, yb) in zip(line, line[1:]):
            figure.line(xa, ya, xb, yb, colour, 2.5, dashed=stage == 2)
        figure.text(line[-1][0] + 8, line[-1][1] + {0: -3, 2: 14, 3: 4}[stage], f"stage {stage}",
                    13, fill=colour, weight="bold")
    figure.write(path)


def ordered_sum(path, _programs):
    figure = Figure(720, 262, "The owner adds the contributions of micro-batches in order, on any "
                              "number of ranks")
    for row, ranks in enumerate((1, 2, 3)):
        top = 20 + row * 72
        figure.text(15, top + 20, f"{ranks} rank{'s' if ranks > 1 else ''}", weight="bold")
        figure.text(100, top + 20, "0.0", 13, mono=True)
        for m in range(6):
            figure.text(136 + m * 88, top + 20, "+", 14, "middle")
            figure.box(146 + m * 88, top, 70, 30, f"g{m}, rank {m % ranks}", fill=RANKS[m % ranks],
                       size=11)
        for j in range(6 // ranks):
            first, last = 146 + j * ranks * 88, 146 + (j * ranks + ranks - 1) * 88 + 70
            figure.line(first, top + 36, last, top + 36)
            figure.text((first + last) / 2, top + 50, f"micro-step {j}", 11, "middle")
    figure.text(15, 246, "Ranks and micro-steps differ. The order of the additions is the same, "
                         "and so are the bits of the sum.", 12)
    figure.write(path)


PICTURES = {"ownership": ownership, "ring": ring, "timelines": timelines, "memory": memory,
            "traffic": traffic, "ordered_sum": ordered_sum}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = 0
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        programs = Programs(options.bin, work)
        for name, draw in PICTURES.items():
            drawn = work / f"{name}.svg"
            draw(drawn, programs)
            stored = DOCS / "pictures" / f"{name}.svg"
            if not options.check:
                stored.parent.mkdir(exist_ok=True)
                stored.write_text(drawn.read_text())
            elif not stored.exists() or stored.read_text() != drawn.read_text():
                print(f"{stored} is stale: run docs/pictures.py --bin FOLDER")
                stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
