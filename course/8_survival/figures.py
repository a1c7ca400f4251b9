"""The figures of lesson 8. course/figures.py calls draw()."""
from drawing import BLUE, GREEN, PALE, RANKS, RED, SKY, Figure


def draw(folder):
    moments(folder / "moments.svg")
    ranges(folder / "ranges.svg")


def moments(path):
    figure = Figure(720, 250, "A save on two ranks: files, barrier, declaration, renaming, "
                              "removal. A crash before the renaming leaves the old save, after it "
                              "the new one")
    for rank in range(2):
        figure.text(15, 62 + rank * 46, f"rank {rank}", weight="bold")
        figure.box(75, 42 + rank * 46, 120, 32, f"write step-3-rank-{rank}", fill=RANKS[rank],
                   size=11)
    figure.box(205, 36, 56, 90, "barrier", fill=PALE, size=12)
    figure.box(271, 42, 110, 32, "write latest.new", fill=SKY, size=11)
    figure.box(391, 42, 118, 32, "rename to latest", fill=GREEN, size=11)
    figure.box(519, 42, 110, 32, "remove step-2-…", fill=SKY, size=11)
    figure.line(450, 22, 450, 40, RED, 2, dashed=True)
    figure.line(450, 76, 450, 200, RED, 2, dashed=True)
    figure.text(450, 16, "one operation, never by halves", 12, "middle", fill=RED)
    figure.box(75, 150, 370, 32, "a crash here: latest names step 2, whose files are all there",
               fill=PALE, size=12)
    figure.box(456, 150, 250, 32, "a crash here: latest names step 3", fill=PALE, size=12)
    figure.text(75, 215, "Half-written files of step 3 may lie about. Nothing names them, so "
                         "nothing reads them;", 12)
    figure.text(75, 233, "the next save writes them anew or removes them.", 12)
    figure.write(path)


def ranges(path):
    # The token table of the lesson's model has 2,144 elements. The ranges are those of the layouts
    # for 3 and for 2 ranks.
    figure = Figure(720, 215, "The token table saved on three ranks and resumed on two: rank 0 of "
                              "2 needs the files of ranks 0 and 1, rank 1 of 2 those of ranks 1 "
                              "and 2")
    scale, left = 550 / 2304, 130
    figure.text(15, 50, "saved on 3", weight="bold")
    figure.text(15, 160, "resumed on 2", weight="bold")
    for rank, (begin, end) in enumerate(((0, 768), (768, 1536), (1536, 2144))):
        figure.box(left + begin * scale, 30, (end - begin) * scale, 32,
                   f"rank {rank}: {begin} to {end}", fill=RANKS[rank], size=11)
    for rank, (begin, end) in enumerate(((0, 1280), (1280, 2144))):
        figure.box(left + begin * scale, 140, (end - begin) * scale, 32,
                   f"rank {rank}: {begin} to {end}", fill=RANKS[rank], size=11)
    for begin, end in ((0, 768), (768, 1280), (1280, 1536), (1536, 2144)):
        middle = left + (begin + end) / 2 * scale
        figure.arrow(middle, 64, middle, 138, BLUE)
        figure.text(middle + 5, 105, f"{end - begin}", 12)
    figure.text(left, 200, "Shards end on blocks of 256 elements; so do the pieces that travel, "
                           "but for the last.", 12)
    figure.write(path)
