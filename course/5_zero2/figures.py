"""The figures of lesson 5. course/figures.py calls draw()."""
from drawing import BLUE, GREEN, ORANGE, PALE, PURPLE, SKY, Figure, bars

# Elements of the lesson's model on 5 ranks, with padding: of all buckets, of the largest untied
# bucket, and of the tied bucket. The numbers are from a run of the solution.
ELEMENTS, LARGEST, TIED = 80640, 5120, 2560


def draw(folder):
    slots(folder / "slots.svg")
    tied(folder / "tied.svg")
    memory(folder / "memory.svg")


def slots(path):
    figure = Figure(720, 205, "Two slots take buckets 0 to 5 in turn: while one fills, the bucket "
                              "before is sent from the other")
    figure.text(20, 24, "time: backward runs from the head to the first layer", 12)
    figure.arrow(350, 20, 700, 20)
    for slot in range(2):
        top = 45 + slot * 80
        figure.text(20, top + 20, f"slot {slot}", weight="bold")
        for i in range(3):
            bucket = 2 * i + slot
            x = 90 + bucket * 88
            figure.box(x, top, 86, 32, f"{bucket} fills", fill=SKY, size=12)
            figure.box(x + 88, top, 70, 32, f"{bucket} is sent", fill=ORANGE, size=12)
    figure.text(90, 190, "A slot is free again when its bucket's call is done, and not when it has "
                         "started.", 12)
    figure.write(path)


def tied(path):
    figure = Figure(720, 170, "The tied table's bucket is open during all of backward: the head "
                              "writes first, the embedding last")
    names = ["head", "block 3", "block 2", "block 1", "block 0", "embedding"]
    for i, name in enumerate(names):
        figure.box(90 + i * 103, 30, 96, 34, name, fill=PURPLE if i in (0, 5) else PALE, size=12)
        if i:
            figure.arrow(90 + i * 103 - 7, 47, 90 + i * 103, 47)
    figure.text(20, 52, "backward", 12)
    figure.box(90, 95, 611, 30, "the table's bucket fills, in a slot of its own", fill=SKY, size=12)
    figure.arrow(138, 66, 138, 94)
    figure.arrow(653, 66, 653, 94)
    figure.text(145, 84, "first gradient", 12)
    figure.text(646, 84, "last gradient", 12, "end")
    figure.text(701, 150, "only here it may be sent", 12, "end")
    figure.arrow(701, 138, 701, 127)
    figure.write(path)


def memory(path):
    figure = Figure(720, 160, "Bytes of gradients and sums on each of five ranks: 387,072 at "
                              "stages 0 and 1, 115,712 at stage 2")
    figure.text(20, 26, "gradients on each of 5 ranks, as measured", weight="bold")
    sums = 4 * ELEMENTS // 5
    bars(figure, 110, 45, 400, [
        ("stages 0, 1", [(4 * ELEMENTS, ORANGE, "a whole gradient"), (sums, GREEN, "sums")]),
        ("stage 2", [(8 * LARGEST, SKY, ""), (4 * TIED, BLUE, ""), (sums, GREEN, "sums")]),
    ], "bytes")
    figure.box(110, 125, 14, 14, fill=SKY)
    figure.text(130, 137, "two slots", 12)
    figure.box(210, 125, 14, 14, fill=BLUE)
    figure.text(230, 137, "the tied bucket", 12)
    figure.write(path)
