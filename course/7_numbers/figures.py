"""The figures of lesson 7. course/figures.py calls draw()."""
from drawing import BLUE, GREEN, GREY, ORANGE, PALE, RANKS, RED, SKY, Figure


def draw(folder):
    formats(folder / "formats.svg")
    order(folder / "order.svg")
    scale(folder / "scale.svg")


def formats(path):
    figure = Figure(720, 175, "The bits of f32, bf16 and f16: sign, exponent and fraction")
    width = 15
    for row, (name, exponent, fraction, text) in enumerate((
            ("f32", 8, 23, "7 digits, up to 3e38"), ("bf16", 8, 7, "2 to 3 digits, up to 3e38"),
            ("f16", 5, 10, "3 to 4 digits, up to 65504"))):
        top = 20 + row * 48
        figure.text(15, top + 21, name, weight="bold")
        x = 65
        for bits, colour, label in ((1, GREY, ""), (exponent, ORANGE, f"exponent {exponent}"),
                                    (fraction, SKY, f"fraction {fraction}")):
            figure.box(x, top, bits * width, 30, label, fill=colour, size=12)
            x += bits * width
        figure.text(x + 10, top + 20, text, 12)
    figure.write(path)


def order(path):
    figure = Figure(720, 262, "Adding 2^25, 1, 1, 1, 1 and -2^25: in order of micro-batch the "
                              "result is the same on any number of ranks; by ranks it depends on "
                              "them")
    values = ["2^25", "1", "1", "1", "1", "-2^25"]
    for i, value in enumerate(values):
        figure.text(205 + i * 62, 24, f"m = {i}", 11, "middle")
        figure.text(205 + i * 62, 42, value, 12, "middle")
    for row, (name, ranks, result, colour) in enumerate((
            ("in order, any N", 0, "0", GREEN), ("by ranks, N = 1", 1, "0", PALE),
            ("by ranks, N = 2", 2, "2", PALE), ("by ranks, N = 3", 3, "0", PALE))):
        top = 60 + row * 46
        figure.text(15, top + 20, name, weight="bold" if ranks == 0 else "normal")
        for i in range(6):
            fill = GREEN if ranks == 0 else RANKS[i % ranks]
            figure.box(176 + i * 62, top, 58, 30, "owner" if ranks == 0 else f"rank {i % ranks}",
                       fill=fill, size=11)
        figure.arrow(550, top + 15, 585, top + 15)
        figure.box(590, top, 60, 30, result, fill=colour, size=13)
    figure.text(15, 252, "The exact sum is 4. What matters here is not who is nearer, but that one "
                         "order gives one result.", 12)
    figure.write(path)


def scale(path):
    # Steps 1 to 5 of the f16 run of check.cpp: (log2 of the loss scale, True if skipped).
    steps = [(22, True), (21, True), (20, True), (19, False), (19, False)]
    figure = Figure(720, 210, "The loss scale of five steps in f16: halved after each overflow, "
                              "until a step is good")
    for power in range(18, 23):
        y = 170 - (power - 18) * 32
        figure.line(90, y, 690, y, GREY, 0.7)
        figure.text(82, y + 4, f"2^{power}", 12, "end")
    for i, (power, skipped) in enumerate(steps):
        y = 170 - (power - 18) * 32
        figure.box(100 + i * 73, y - 11, 66, 22, "overflow" if skipped else "update",
                   fill=RED if skipped else BLUE, size=11, ink="#ffffff")
        figure.text(133 + i * 73, 195, f"step {i + 1}", 12, "middle")
    figure.write(path)
