"""The figures of lesson 6. course/figures.py calls draw()."""
from drawing import BLUE, GREEN, ORANGE, PALE, SKY, Figure, bars


def draw(folder):
    life(folder / "life.svg")
    micro_step(folder / "micro_step.svg")
    peak(folder / "peak.svg")


def life(path):
    figure = Figure(720, 190, "A block is gathered from its shards, read, and let go; only the "
                              "shards stay")
    for i, (title, whole) in enumerate((("before", False), ("gathered", True), ("used", True),
                                        ("let go", False))):
        x = 20 + i * 178
        figure.text(x + 75, 24, title, 13, "middle", weight="bold")
        for r in range(3):
            full = whole or r == 1
            figure.box(x + r * 50, 40, 48, 34, f"{r}" if full else "", fill=SKY if full else PALE,
                       dashed=not full, size=12)
        if i < 3:
            figure.arrow(x + 152, 57, x + 176, 57)
    figure.text(20, 105, "One block on rank 1. Its own shard is always there; the other two lie on "
                         "ranks 0 and 2.", 12)
    figure.text(20, 130, "all_gather brings them into a new buffer. The block's parameters get it,",
                12)
    figure.text(20, 148, "and lose it again when the next block is reached. Gradients take the way "
                         "of lesson 5.", 12)
    figure.write(path)


def micro_step(path):
    figure = Figure(720, 220, "Which blocks are gathered in a micro-step with four blocks: two at "
                              "a time, the tied table throughout; the gather of a block runs while "
                              "the one before is used")
    columns = ["table", "0", "1", "2", "3", "head", "head", "3", "2", "1", "0"]
    x0, width = 110, 54
    figure.text(20, 26, "in use", 12)
    for i, name in enumerate(columns):
        fill = ORANGE if name in ("table", "head") else SKY
        figure.box(x0 + i * width, 10, width - 3, 24, name, fill=fill, size=11)
    figure.text(x0 + 2.5 * width, 52, "forward", 12, "middle")
    figure.text(x0 + 9 * width, 52, "backward", 12, "middle")
    # (unit, first column, end column, colour) for each time that a unit is gathered. In the first
    # column of a block, the gather of the block still runs.
    rows = [("table", 0, 11, ORANGE), ("block 0", 0, 2, SKY), ("block 1", 1, 3, SKY),
            ("block 2", 2, 4, SKY), ("block 3", 3, 8, SKY), ("block 2", 7, 9, SKY),
            ("block 1", 8, 10, SKY), ("block 0", 9, 11, SKY)]
    levels = {"table": 0, "block 0": 1, "block 1": 2, "block 2": 3, "block 3": 4}
    for name, begin, end, fill in rows:
        top = 65 + levels[name] * 28
        figure.box(x0 + begin * width, top, (end - begin) * width - 3, 22, "", fill=fill)
        if name != "table":
            figure.box(x0 + begin * width, top, width - 3, 22, "gather", fill=PALE, size=10)
    for name, level in levels.items():
        figure.text(20, 65 + level * 28 + 16, name, 12)
    figure.write(path)


def peak(path):
    # Bytes of the lesson's model on 5 ranks, from a run of the solution.
    own, tied, block = 68608, 4 * 3840, 4 * 20480
    figure = Figure(720, 170, "Bytes of parameters on each of five ranks: 322,560 at stage 2; at "
                              "stage 3 68,608 between steps and 247,808 at the peak")
    figure.text(20, 26, "parameters on each of 5 ranks, as measured", weight="bold")
    bars(figure, 160, 45, 400, [
        ("stage 2", [(4 * 80640, SKY, "all parameters")]),
        ("stage 3, between", [(own, GREEN, "own shards")]),
        ("stage 3, at its peak", [(own, GREEN, "own shards"), (tied, ORANGE, "t"),
                                  (block, BLUE, "a block"), (block, BLUE, "the next")]),
    ], "bytes")
    figure.text(160, 160, "t: the unit of the tied table", 12)
    figure.write(path)
