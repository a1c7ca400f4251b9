"""The figures of lesson 4. course/figures.py calls draw()."""
from drawing import BLUE, GREEN, ORANGE, RANKS, SKY, Figure, bars

ELEMENTS = 67584  # of the lesson's model on 3 ranks, with padding


def draw(folder):
    ownership(folder / "ownership.svg")
    update(folder / "update.svg")
    memory(folder / "memory.svg")


def ownership(path):
    figure = Figure(720, 250, "Three buckets, each cut into three shards; rank 1 owns the middle "
                              "shard of every bucket, and keeps moments for those alone")
    figure.text(20, 28, "parameters (every rank has all of them)", weight="bold")
    widths = (240, 150, 210)
    at = 20
    for b, width in enumerate(widths):
        figure.text(at + width / 2, 52, f"bucket {b}", 12, "middle")
        for r in range(3):
            figure.box(at + r * width / 3, 60, width / 3, 36, f"rank {r}", fill=RANKS[r], size=12)
        at += width + 20
    at, target = 20, 20
    for b, width in enumerate(widths):
        for k in range(2):
            figure.box(target, 152 + 40 * k, width / 3, 30, "mv"[k] + f" of {b}", fill=RANKS[1],
                       size=12)
        figure.arrow(at + width / 2, 98, target + width / 6, 150)
        target += width / 3
        at += width + 20
    figure.text(target + 16, 172, "moments m and v on rank 1", weight="bold")
    figure.text(target + 16, 194, "8 bytes for each element that rank 1 owns:", 13)
    figure.text(target + 16, 214, "a third of what stage 0 keeps", 13)
    figure.write(path)


def update(path):
    figure = Figure(720, 230, "The update of stage 1 on two ranks: each updates its shard of a "
                              "bucket while the bucket before is gathered")
    figure.text(20, 26, "time", 12)
    figure.arrow(55, 22, 700, 22)
    for rank in range(2):
        top = 45 + rank * 90
        figure.text(20, top + 18, f"rank {rank}", weight="bold")
        figure.text(20, top + 36, "computes", 12)
        figure.text(20, top + 62, "sends", 12)
        at = 100
        for b in range(3):
            figure.box(at, top, 120, 30, f"AdamW, shard {rank} of {b}", fill=RANKS[rank], size=11)
            figure.box(at + 125, top + 40, 115, 26, f"gather bucket {b}", fill="#f3f4f6", size=11)
            at += 125
        figure.box(at + 125, top, 100, 30, "next forward", fill="#ffffff", size=12)
    figure.write(path)


def memory(path):
    figure = Figure(720, 190, "Bytes on each of three ranks at stages 0 and 1: only the state "
                              "shrinks, to a third")
    e = ELEMENTS
    figure.text(20, 26, "the lesson's model on each of 3 ranks", weight="bold")
    for i, (stage, state) in enumerate((("stage 0", 8 * e), ("stage 1", 8 * e // 3))):
        rows = [(stage, [(4 * e, SKY, "parameters"), (4 * e, ORANGE, "gradients"),
                         (4 * e // 3, GREEN, "sums"), (state, BLUE, "moments")])]
        bars(figure, 90, 50 + 50 * i, 480, rows, "bytes", 4 * e + 4 * e + 4 * e // 3 + 8 * e)
    figure.text(90, 170, "4 bytes for each of 67,584 elements are one unit of 270,336 bytes.", 12)
    figure.write(path)
