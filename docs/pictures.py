#!/usr/bin/env python3
"""Draws the pictures of docs/ from runs: docs/pictures/*.svg.

Usage: docs/pictures.py --bin FOLDER [--check]. FOLDER has Tessera's programs. --check draws nothing
and fails if a stored picture is not what the programs now give. Only bytes and the order of calls
are drawn, which are the same in every run and on every machine.
"""
import argparse
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
    # For each stage: 1 whole, 0 the own shard, 2 whole but only for a short time.
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


def ring(path, _programs):
    figure = Figure(720, 220, "The gradient ring of stages 2 and 3: buckets are placed at its two "
                              "ends in turn; a bucket's memory is free when its call is done")
    states = (("bucket 4 fills", (0, 230, "4 fills", SKY), None),
              ("4 is sent, 5 fills", (0, 230, "4 in flight", ORANGE), (270, 170, "5 fills", SKY)),
              ("4 is done, 6 fills", (0, 160, "6 fills", SKY), (270, 170, "5 in flight", ORANGE)))
    for i, (title, first, second) in enumerate(states):
        top = 20 + i * 56
        figure.text(15, top + 22, title, 13)
        figure.box(200, top, 440, 34, fill=PALE)
        for part in (first, second):
            if part:
                x, width, text, fill = part
                figure.box(200 + x, top, width, 34, text, fill=fill, size=12)
    figure.text(200, 205, "Beside the ring: the bucket of a tied parameter, which fills during all "
                          "of backward.", 12)
    figure.write(path)


def calls_of_step(programs, stage):
    """The calls of rank 0 in one step, by phase, in order, as (kind, purpose, bucket)."""
    programs.train(2, stage, "--trace", "trace.json", "--bucket-bytes", 1 << 20)
    data = json.loads((programs.work / "trace.json").read_text())
    events = data["traceEvents"] if isinstance(data, dict) else data
    track = {(e["pid"], e["tid"]): e["args"].get("name")
             for e in events if e.get("ph") == "M" and e["name"] == "thread_name"}
    calls = [(e["ts"], e["name"], e["args"].get("detail", "").split(",")[0],
              e["args"].get("bucket", -1))
             for e in events if e.get("ph") == "X" and e["pid"] == 0
             and track.get((0, e["tid"])) == "communication"]
    calls = [call[1:] for call in sorted(calls)]
    # Losses are gathered when backward is over and before the update. So the second step begins,
    # after the first losses, with the update of the first one, which is left out.
    ends = [i for i, (_, purpose, _) in enumerate(calls) if purpose == "losses"]
    until_losses = [call for call in calls[ends[0] + 1:ends[1]]
                    if call[1] in ("gradients", "parameters")]
    update = [call for call in calls[ends[1] + 1:ends[2]]
              if call[1] in ("gradients", "parameters")]
    if stage < 3:
        first = next(i for i, call in enumerate(until_losses) if call[0] == "exchange")
        until_losses = until_losses[first:]
        update = update[:next(i for i, call in enumerate(update) if call[0] == "exchange")]
        return {"forward": [], "backward": until_losses, "update": update}
    first = next(i for i, call in enumerate(until_losses) if call[0] == "exchange")
    # The gather ahead of the first exchange belongs to backward already: it brings a bucket again.
    seen = set()
    for i, (_, _, bucket) in enumerate(until_losses[:first]):
        if bucket in seen:
            first = i
            break
        seen.add(bucket)
    return {"forward": until_losses[:first], "backward": until_losses[first:], "update": []}


def timelines(path, programs):
    figure = Figure(800, 330, "The calls of one step on two ranks at stages 0 to 3, in order, "
                              "beside the phase of the step in which they start")
    colours = {("exchange", "gradients"): ORANGE, ("all_gather", "gradients"): PURPLE,
               ("all_gather", "parameters"): SKY}
    width = 34
    begins = {"forward": 85, "backward": 85 + 6 * width + 12, "update": 85 + 15 * width + 24}
    lengths = {"forward": 6, "backward": 9, "update": 5}
    for stage in STAGES:
        top = 20 + stage * 70
        figure.text(10, top + 40, f"stage {stage}", weight="bold")
        for phase, calls in calls_of_step(programs, stage).items():
            name = "update, next forward" if phase == "update" and stage in (1, 2) else phase
            figure.box(begins[phase], top, lengths[phase] * width - 2, 22, name, fill=PALE, size=11)
            if len(calls) > lengths[phase]:
                sys.exit(f"stage {stage}: {len(calls)} calls in {phase} have no room")
            for i, (kind, purpose, bucket) in enumerate(calls):
                figure.box(begins[phase] + i * width, top + 26, width - 2, 24, str(bucket),
                           fill=colours[kind, purpose], size=11)
    for i, (label, colour) in enumerate((("exchange: gradients to owners", ORANGE),
                                         ("all_gather: sums", PURPLE),
                                         ("all_gather: parameters", SKY))):
        figure.box(85 + (0, 250, 420)[i], 302, 16, 16, fill=colour)
        figure.text(107 + (0, 250, 420)[i], 315, label, 13)
    figure.write(path)


def memory(path, programs):
    figure = Figure(720, 195, "Peak bytes by category on each of four ranks at stages 0 to 3, "
                              "planned and measured alike")
    # Activations and workspace do not depend on the stage, but on the machine's instruction set.
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
            figure.box(x, top, value * scale, 28, fill=colours[name])
            x += value * scale
        figure.text(x + 6, top + 19, f"{sum(values.values()):,}", 12)
    for i, (name, colour) in enumerate(colours.items()):
        x, y = 85 + i * 150, 170
        figure.box(x, y, 14, 14, fill=colour)
        figure.text(x + 20, y + 12, name.replace("_", " "), 12)
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
    for i in range(5):
        y = y0 - i * height / 4
        figure.line(x0, y, x0 + width, y, GREY, 0.7)
        figure.text(x0 - 8, y + 4, f"{largest * i / 4 / 1e6:.1f} MB", 11, "end")
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
    figure = Figure(720, 200, "The owner adds the contributions of micro-batches in order, on any "
                              "number of ranks")
    for row, ranks in enumerate((1, 2, 3)):
        top = 20 + row * 50
        figure.text(15, top + 20, f"{ranks} rank{'s' if ranks > 1 else ''}", weight="bold")
        figure.text(100, top + 20, "0.0", 13, mono=True)
        for m in range(6):
            figure.text(136 + m * 88, top + 20, "+", 14, "middle")
            figure.box(146 + m * 88, top, 70, 30, f"m{m}, rank {m % ranks}", fill=RANKS[m % ranks],
                       size=11)
    figure.text(15, 185, "The order of additions is that of micro-batches, and no rank occurs in "
                         "it: so the bits are equal.", 12)
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
