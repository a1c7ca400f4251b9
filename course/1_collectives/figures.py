"""The figures of lesson 1. course/figures.py calls draw()."""
import math

from drawing import BLUE, GREY, PALE, RANKS, RED, Figure


def draw(folder):
    ring(folder / "ring.svg")
    tree(folder / "tree.svg")
    time(folder / "time.svg")


def ring(path):
    figure = Figure(720, 270, "Reduce-scatter on a ring of three ranks: before, after one and "
                              "after two rounds; at the end rank r has the sum of piece r")
    # [k][r][p]: the ranks whose values are in piece p of rank r after k rounds.
    states = [
        [[{r} for _ in range(3)] for r in range(3)],
        [[{0}, {2, 0}, {0}], [{1}, {1}, {0, 1}], [{1, 2}, {2}, {2}]],
        [[{0, 1, 2}, {2, 0}, {0}], [{1}, {0, 1, 2}, {0, 1}], [{1, 2}, {2}, {0, 1, 2}]],
    ]
    titles = ["before", "after round 1", "after round 2"]
    for i, state in enumerate(states):
        left = 80 + i * 220
        figure.text(left + 90, 24, titles[i], 13, "middle", weight="bold")
        for r, pieces in enumerate(state):
            top = 45 + r * 70
            if i == 0:
                figure.text(15, top + 25, f"rank {r}", weight="bold")
            for p, contributions in enumerate(pieces):
                done = len(contributions) == 3
                figure.box(left + p * 62, top, 58, 38, fill="#ffffff",
                           stroke=RED if done else "#1f2328")
                width = 54 / 3
                for k, rank in enumerate(sorted(contributions)):
                    figure.box(left + p * 62 + 2 + k * width, top + 2, width, 34, str(rank),
                               fill=RANKS[rank], stroke=RANKS[rank], size=12)
    for p in range(3):
        for i in range(3):
            figure.text(80 + i * 220 + p * 62 + 29, 248, f"piece {p}", 11, "middle")
    figure.text(80, 266, "Numbers are the ranks whose values are in the sum. Outlined in red: "
                         "complete.", 11)
    figure.write(path)


def tree(path):
    figure = Figure(720, 220, "A binomial tree with five ranks: in round 1 ranks 1 and 3 send to 0 "
                              "and 2, in round 2 rank 2 sends to 0, in round 3 rank 4 sends to 0")
    rounds = [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    active = {0, 1, 2, 3, 4}
    for level in range(4):
        top = 20 + level * 52
        name = "start" if level == 0 else f"after round {level}"
        figure.text(15, top + 20, name, 12)
        for rank in range(5):
            x = 130 + rank * 115
            figure.box(x, top, 60, 28, f"rank {rank}", fill=RANKS[rank] if rank in active else PALE,
                       size=12, dashed=rank not in active)
        if level < 3:
            for source, target in rounds[level]:
                figure.arrow(130 + source * 115 + 30, top + 29, 130 + target * 115 + 34, top + 51)
                active.discard(source)
    figure.write(path)


def ring_s(size, ranks, latency, bandwidth):
    return 2 * (ranks - 1) * (latency + size / ranks / bandwidth)


def tree_s(size, ranks, latency, bandwidth):
    return 2 * math.ceil(math.log2(ranks)) * (latency + size / bandwidth)


def time(path):
    ranks, latency, bandwidth = 8, 1e-5, 5e9
    figure = Figure(720, 330, "Predicted time of an all-reduce on 8 ranks over the size: the tree "
                              "is faster for small buffers, the ring for large ones")
    x0, y0, width, height = 80, 280, 560, 240
    low, high = 3, 9  # powers of ten of the size
    fast, slow = -4.5, 0.5  # powers of ten of the time

    def at(size, seconds):
        return (x0 + (math.log10(size) - low) / (high - low) * width,
                y0 - (math.log10(seconds) - fast) / (slow - fast) * height)

    figure.line(x0, y0, x0 + width, y0)
    figure.line(x0, y0, x0, y0 - height)
    for power, name in ((3, "1 kB"), (4, "10 kB"), (5, "100 kB"), (6, "1 MB"), (7, "10 MB"),
                        (8, "100 MB"), (9, "1 GB")):
        x, _ = at(10 ** power, 1)
        figure.line(x, y0, x, y0 + 5)
        figure.text(x, y0 + 20, name, 11, "middle")
    for power, name in ((-4, "0.1 ms"), (-3, "1 ms"), (-2, "10 ms"), (-1, "0.1 s"), (0, "1 s")):
        _, y = at(1e3, 10 ** power)
        figure.line(x0, y, x0 + width, y, GREY, 0.7)
        figure.text(x0 - 8, y + 4, name, 11, "end")
    for name, seconds, colour, below in (("ring", ring_s, BLUE, 1), ("tree", tree_s, RED, 0)):
        points = [at(10 ** (low + i / 20), seconds(10 ** (low + i / 20), ranks, latency, bandwidth))
                  for i in range(20 * (high - low) + 1)]
        for (xa, ya), (xb, yb) in zip(points, points[1:]):
            figure.line(xa, ya, xb, yb, colour, 2.5)
        figure.text(points[-1][0] + 6, points[-1][1] + 4 + 6 * below, name, 13, fill=colour,
                    weight="bold")
    # The size S at which both times are equal: 2 (N - 1) (L + S / (N B)) = 2 log2 N (L + S / B).
    rounds = math.ceil(math.log2(ranks))
    size = ((ranks - 1) - rounds) * latency * bandwidth / (rounds - (ranks - 1) / ranks)
    x, y = at(size, ring_s(size, ranks, latency, bandwidth))
    figure.line(x, y, x, y0, dashed=True)
    figure.text(x + 6, y0 - 10, f"equal at {size / 1e3:.0f} kB", 12)
    figure.text(x0 + width / 2, 322, "size of the buffer (8 ranks, L = 10 µs, B = 5 GB/s)", 12,
                "middle")
    figure.write(path)
