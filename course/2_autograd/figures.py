"""The figures of lesson 2. course/figures.py calls draw()."""
from drawing import GREEN, ORANGE, PALE, RED, SKY, YELLOW, Figure

# The example that README.md computes by hand: x (2, 3), W (3, 2), dy (2, 2).
X = ((1, 2, 0), (3, 0, 1))
W = ((1, 0), (0, 1), (2, 1))
DY = ((1, 2), (3, 4))


def draw(folder):
    gradients(folder / "gradients.svg")
    graph(folder / "graph.svg")
    events(folder / "events.svg")


def matrix(figure, x, y, name, values, marked, cell=30):
    """Draws a matrix below its name. `marked`: {(row, column): colour}. Returns the right edge."""
    columns = len(values[0])
    figure.text(x + columns * cell / 2, y - 8, name, 13, "middle", weight="bold")
    for r, row in enumerate(values):
        for c, value in enumerate(row):
            figure.box(x + c * cell, y + r * cell, cell, cell, str(value),
                       fill=marked.get((r, c), "#ffffff"))
    return x + columns * cell


def gradients(path):
    figure = Figure(720, 400, "One element of each gradient: of dx it is a row of dy times a row "
                              "of W, of dW a column of x times a column of dy, of db a column of "
                              "dy")
    dx = [[sum(DY[r][o] * W[i][o] for o in range(2)) for i in range(3)] for r in range(2)]
    dw = [[sum(X[r][i] * DY[r][o] for r in range(2)) for o in range(2)] for i in range(3)]
    db = [[sum(DY[r][o] for r in range(2)) for o in range(2)]]
    left = 120
    figure.text(15, 70, "dx = dy W^T", weight="bold")
    matrix(figure, left + 20, 40, "dy", DY, {(1, 0): SKY, (1, 1): SKY})
    matrix(figure, left + 130, 40, "W", W, {(2, 0): YELLOW, (2, 1): YELLOW})
    matrix(figure, left + 250, 40, "dx", dx, {(1, 2): ORANGE})
    figure.text(left + 355, 65, "dx[1][2] = 3 · 2 + 4 · 1 = 10", 13)
    figure.text(left + 355, 85, "row 1 of dy, row 2 of W", 12)
    figure.text(15, 205, "dW = x^T dy", weight="bold")
    matrix(figure, left + 5, 180, "x", X, {(0, 0): SKY, (1, 0): SKY})
    matrix(figure, left + 130, 180, "dy", DY, {(0, 1): YELLOW, (1, 1): YELLOW})
    matrix(figure, left + 265, 180, "dW", dw, {(0, 1): ORANGE})
    figure.text(left + 355, 205, "dW[0][1] = 1 · 2 + 3 · 4 = 14", 13)
    figure.text(left + 355, 225, "column 0 of x, column 1 of dy", 12)
    figure.text(15, 345, "db", weight="bold")
    matrix(figure, left + 130, 320, "dy", DY, {(0, 1): YELLOW, (1, 1): YELLOW})
    matrix(figure, left + 265, 320, "db", db, {(0, 1): ORANGE})
    figure.text(left + 355, 340, "db[1] = 2 + 4 = 6", 13)
    figure.text(left + 355, 360, "column 1 of dy", 12)
    figure.write(path)


def graph(path):
    figure = Figure(720, 265, "The network's graph: x, fc0, fc1, fc2, fc3, loss; the forward goes "
                              "to the right, backward to the left; the weight of fc0 is an input "
                              "of fc3 too, and awaits two contributions")
    at = [85 + i * 132 for i in range(5)]
    names = ["fc0, relu", "fc1, relu", "fc2, relu", "fc3", "loss"]
    top = 105
    figure.text(20, top + 23, "x")
    figure.arrow(32, top + 18, at[0] - 3, top + 18)
    for i, name in enumerate(names):
        figure.box(at[i], top, 90, 36, name, fill=SKY)
        if i < 4:
            figure.arrow(at[i] + 91, top + 12, at[i + 1] - 3, top + 12)
            figure.arrow(at[i + 1] - 1, top + 25, at[i] + 93, top + 25, RED)
            figure.text(at[i] + 45, top - 8, f"visited as no. {4 - i}", 11, "middle", RED)
    # The parameters, and the number of contributions to the gradient of each.
    for x, name in ((at[1], "fc1.weight\nfc1.bias"), (at[2], "fc2.weight\nfc2.bias"),
                    (at[3] + 25, "fc3.bias")):
        figure.box(x + 2, 190, 86, 36, name, fill=PALE, size=12)
        figure.arrow(x + 45, 142, x + 45, 188, RED)
        figure.text(x + 52, 170, "1", 12, fill=RED)
    figure.box(at[0] + 2, 190, 86, 36, "fc0.weight", fill=ORANGE, size=12)
    figure.arrow(at[0] + 45, 142, at[0] + 45, 188, RED)
    figure.text(at[0] + 52, 170, "second", 11, fill=RED)
    figure.line(at[3] + 15, 142, at[3] + 15, 240, RED)
    figure.line(at[3] + 15, 240, at[0] + 45, 240, RED)
    figure.arrow(at[0] + 45, 240, at[0] + 45, 228, RED)
    figure.text(at[0] + 60, 255, "first contribution of two, from fc3", 11, fill=RED)
    figure.text(20, 25, "Forward, to the right: each operation records a node.", 13)
    figure.text(20, 45, "Backward, to the left: each node hands gradients to its inputs. A "
                        "parameter is complete when all", 13, fill=RED)
    figure.text(20, 62, "its contributions have come: for most after one, for fc0.weight after "
                        "two.", 13, fill=RED)
    figure.write(path)


# The events of one backward of the reference solution, as the check's hooks saw them. For each
# layer: its name, the parameter whose value its backward reads (None: no parameter), and the
# gradients that are complete after it. The weight of fc3 is fc0.weight.
BACKWARD = (("fc3", "fc0.weight", ("fc3.bias",)),
            ("fc2", "fc2.weight", ("fc2.weight", "fc2.bias")),
            ("fc1", "fc1.weight", ("fc1.weight", "fc1.bias")),
            ("fc0", None, ("fc0.weight",)))


def events(path):
    figure = Figure(720, 300, "One backward: which values are in use while a layer is visited, and "
                              "when each gradient is complete; fc0.weight is the last")
    rows = ("fc3.bias", "fc2.weight", "fc2.bias", "fc1.weight", "fc1.bias", "fc0.weight")
    left, width, top = 120, 140, 45
    for i, (layer, used, complete) in enumerate(BACKWARD):
        x = left + i * width
        figure.text(x + width / 2, 28, f"backward of {layer}", 13, "middle", weight="bold")
        figure.line(x, 36, x, top + 6 * 34, "#bbbbbb", 1)
        for name in rows:
            y = top + rows.index(name) * 34
            if name == used:
                figure.box(x + 8, y + 5, 74, 22, "in use", fill=SKY, size=12)
            if name in complete:
                figure.box(x + 88, y + 5, 18, 22, fill=GREEN)
            elif name == "fc0.weight" and layer == "fc3":
                figure.box(x + 88, y + 5, 18, 22, fill=ORANGE)
    figure.line(left + 4 * width, 36, left + 4 * width, top + 6 * 34, "#bbbbbb", 1)
    for r, name in enumerate(rows):
        figure.text(left - 10, top + r * 34 + 21, name, 12, "end")
        figure.line(left, top + r * 34, left + 4 * width, top + r * 34, "#e5e5e5", 1)
    figure.line(left, top + 6 * 34, left + 4 * width, top + 6 * 34, "#bbbbbb", 1)
    figure.box(left, 264, 18, 18, fill=SKY)
    figure.text(left + 24, 278, "the value is read, for dx", 12)
    figure.box(left + 190, 264, 18, 18, fill=ORANGE)
    figure.text(left + 214, 278, "first of two contributions", 12)
    figure.box(left + 385, 264, 18, 18, fill=GREEN)
    figure.text(left + 409, 278, "complete: the hook is called", 12)
    figure.write(path)
