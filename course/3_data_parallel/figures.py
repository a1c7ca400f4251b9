"""The figures of lesson 3. course/figures.py calls draw()."""
from drawing import ORANGE, PALE, RANKS, SKY, Figure


def draw(folder):
    step(folder / "step.svg")
    exchange(folder / "exchange.svg")
    overlap(folder / "overlap.svg")


def step(path):
    figure = Figure(720, 215, "A step of data parallelism on three ranks: each computes its own "
                              "micro-batches, gradients are summed, all make the same update")
    for r in range(3):
        top = 20 + r * 60
        figure.text(15, top + 25, f"rank {r}", weight="bold")
        figure.box(80, top, 105, 38, f"micro-batches\n{r}, {r + 3}" + (", 6" if r == 0 else ""),
                   fill=RANKS[r], size=11)
        figure.box(215, top, 120, 38, "forward, backward", fill=PALE, size=12)
        figure.box(505, top, 90, 38, "update", fill=SKY, size=12)
        figure.text(606, top + 24, "same weights", 12)
        figure.arrow(186, top + 19, 213, top + 19)
        figure.arrow(336, top + 19, 363, top + 19)
        figure.arrow(476, top + 19, 503, top + 19)
    figure.box(365, 20, 110, 158, "sum of all\ngradients", fill=ORANGE, size=13)
    figure.text(80, 205, "Seven micro-batches: ranks 1 and 2 have none of their own in the third "
                         "micro-step.", 12)
    figure.write(path)


def exchange(path):
    figure = Figure(720, 270, "exchange: every rank sends piece r of its bucket to rank r, which "
                              "adds the pieces in order of rank")
    for source in range(3):
        top = 30 + source * 72
        figure.text(15, top + 22, f"rank {source}", weight="bold")
        for piece in range(3):
            figure.box(80 + piece * 66, top, 64, 34, f"{piece} of {source}", fill=RANKS[source],
                       size=12)
        figure.box(400, top, 110, 34, f"sum of piece {source}", fill=PALE, size=12)
        figure.text(520, top + 14, "0.0", 12)
        for k in range(3):
            figure.text(546 + k * 56, top + 14, f"+ {source} of {k}", 12)
        figure.text(520, top + 31, "in this order", 11)
    for source in range(3):
        for piece in range(3):
            figure.arrow(282, 47 + source * 72, 398, 47 + piece * 72, width=0.9)
    figure.text(80, 258, "Each rank sends two of its three pieces: as many bytes as in a ring.", 12)
    figure.write(path)


def overlap(path):
    figure = Figure(720, 190, "With overlap, a bucket is on its way while backward computes the "
                              "next one; without, all are sent at the end")
    for row, (title, overlapped) in enumerate((("sent at the end", False), ("overlap", True))):
        top = 25 + row * 85
        figure.text(15, top + 20, title, weight="bold")
        for b in range(4):
            figure.box(140 + b * 70, top, 68, 28, f"backward {b}", fill=SKY, size=11)
            x = 140 + (b + 1) * 70 if overlapped else 140 + 4 * 70 + b * 56
            figure.box(x, top + 32, 54, 24, f"send {b}", fill=ORANGE, size=11)
        end = 140 + 5 * 70 - 15 if overlapped else 140 + 4 * 70 + 4 * 56
        figure.line(end, top - 5, end, top + 62, dashed=True)
        figure.text(end + 6, top + 8, "update", 12)
    figure.write(path)
