"""Draws figures as SVG: boxes, text, arrows, bars. A figure has a white background, so it is
readable on light and on dark pages. Colour-blind readers can distinguish the colours (Okabe and
Ito).

    figure = Figure(640, 200, "What the figure shows, for readers who do not see it")
    figure.box(20, 20, 100, 30, "rank 0", fill=RANKS[0])
    figure.write(path)
"""
import html
import pathlib

ORANGE, SKY, GREEN, YELLOW, BLUE, RED, PURPLE, GREY = (
    "#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#bbbbbb")
INK, PALE = "#1f2328", "#f3f4f6"
# The colours of ranks 0 to 4.
RANKS = (SKY, ORANGE, GREEN, PURPLE, YELLOW)
DARK = (BLUE, RED, GREEN)  # fills on which text is white


class Figure:
    def __init__(self, width, height, description):
        self.size = (width, height)
        self.description = description
        self.parts = []

    def add(self, part):
        self.parts.append(part)

    def text(self, x, y, text, size=14, anchor="start", fill=INK, weight="normal", mono=False):
        family = ' font-family="ui-monospace, monospace"' if mono else ""
        self.add(f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
                 f'fill="{fill}" font-weight="{weight}"{family}>{html.escape(str(text))}</text>')

    def box(self, x, y, width, height, text="", fill=PALE, stroke=INK, size=13, ink=None,
            dashed=False):
        """Draws a rectangle with a centred text. `text` may have several lines."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.add(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" '
                 f'fill="{fill}" stroke="{stroke}"{dash}/>')
        lines = str(text).split("\n") if text else []
        ink = ink or ("#ffffff" if fill in DARK else INK)
        top = y + height / 2 - (len(lines) - 1) * size * 0.6 + size * 0.35
        for i, line in enumerate(lines):
            self.text(x + width / 2, top + i * size * 1.2, line, size, "middle", ink)

    def line(self, x1, y1, x2, y2, stroke=INK, width=1.5, dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.add(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
                 f'stroke-width="{width}"{dash}/>')

    def arrow(self, x1, y1, x2, y2, stroke=INK, width=1.5, dashed=False):
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.add(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
                 f'stroke-width="{width}"{dash} marker-end="url(#head)"/>')

    def svg(self):
        width, height = self.size
        description = html.escape(self.description)
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img" aria-label="{description}" '
            'font-family="system-ui, sans-serif">',
            f"<title>{description}</title>",
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse">'
            '<path d="M0 0L10 5L0 10z" fill="context-stroke"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *self.parts, "</svg>", ""])

    def write(self, path):
        pathlib.Path(path).write_text(self.svg())


def bars(figure, x, y, width, rows, unit, scale=None):
    """Draws horizontal stacked bars from rows of (label, [(value, colour, name), ...]).

    All bars have one scale. The total is written after each bar.
    """
    largest = scale or max(sum(value for value, _, _ in parts) for _, parts in rows)
    for i, (label, parts) in enumerate(rows):
        top = y + i * 34
        figure.text(x - 8, top + 17, label, 13, "end")
        at = x
        for value, colour, name in parts:
            length = value / largest * width
            wide = length > 7.5 * len(name) + 6
            if length > 0:
                figure.box(at, top, length, 24, name if wide else "", fill=colour, size=12)
            at += length
        total = sum(value for value, _, _ in parts)
        figure.text(at + 6, top + 17, f"{total:,} {unit}", 12)
