#!/usr/bin/env python3
"""Runs train_gpt and makes the pictures of reports and of a terminal in README.md and docs/report.md.

  docs/screenshots.py --bin build/release/bin      needs Chromium

The pictures show times of the machine on which they are made, so no test compares them.
"""
import argparse
import os
import pathlib
import pty
import re
import shutil
import subprocess
import tempfile
from xml.sax.saxutils import escape

DOCS = pathlib.Path(__file__).resolve().parent
PICTURES = DOCS / "pictures"
SETTINGS = (DOCS.parent / "scripts/mpi.env").read_text().splitlines()
ENVIRONMENT = {**dict(line.split("=", 1) for line in SETTINGS if line and line[0] != "#"),
               "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}
COLUMNS = 104
BAR = re.compile("[█▏▎▍▌▋▊▉]+")


def terminal_lines(command, folder):
    """Runs the command on a terminal of COLUMNS columns. Returns two values: the list of lines that
    the terminal shows at the end, except the live line (the line that the program redraws), and the
    live line as it was after half of its redraws."""
    output = b""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ.update(ENVIRONMENT)
        subprocess.run(["stty", "cols", str(COLUMNS)], check=True)
        os.execvp(command[0], command)
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the terminal is closed
            break
        if not part:
            break
        output += part
    os.waitpid(child, 0)
    text = re.sub("\x1b\\[[0-9;]*[mK]", "", output.decode())
    lines = [line.split("\r") for line in text.replace("\r\n", "\n").split("\n")]
    live = max(lines, key=len)
    return [parts[-1] for parts in lines if parts is not live], live[len(live) // 2]


def draw_terminal(lines, path):
    """Draws a terminal with these lines; "..." stands for lines that are left out."""
    width, row, left, top = 8.0, 19, 16, 44
    height = top + row * len(lines) + 10
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * width + 2 * left:.0f} '
             f'{height}" font-family="DejaVu Sans Mono, monospace" font-size="13.2">',
             f'<rect width="100%" height="{height}" rx="8" fill="#14181d"/>']
    parts += [f'<circle cx="{20 + 18 * i}" cy="18" r="6" fill="{color}"/>'
              for i, color in enumerate(("#d55e00", "#e69f00", "#009e73"))]
    for i, line in enumerate(lines):
        y = top + row * i + 8
        color = "#7fd7a8" if line.startswith("$") else "#e6eaef"
        spans = [escape(line)]
        bar = BAR.search(line)
        if bar:
            spans = [escape(line[:bar.start()]), f'<tspan fill="#56b4e9">{bar[0]}</tspan>',
                     escape(line[bar.end():])]
        parts.append(f'<text x="{left}" y="{y}" fill="{color}" xml:space="preserve" '
                     f'textLength="{width * len(line):.0f}">{"".join(spans)}</text>')
    path.write_text("\n".join([*parts, "</svg>\n"]))


def screenshot(page, path, size, hidden=""):
    """Takes a picture of the page, without the elements that the CSS selector `hidden` matches."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("error: needs chromium")
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / "page.html"
        style = f"<style>{hidden} {{ display: none }} h2 {{ margin-top: 14px }}</style>\n"
        copy.write_text(page.read_text() + (style if hidden else ""))
        subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                        f"--window-size={size}", "--virtual-time-budget=5000",
                        f"--screenshot={path}", f"file://{copy}"],
                       check=True, stderr=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, type=pathlib.Path)
    programs = parser.parse_args().bin.resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        text = "".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
        (work / "text.txt").write_text(text)
        shown = ["mpirun", "-n", "2", "train_gpt", "--data", "text.txt", "--steps", "500",
                 "--eval-every", "100", "--report", "run.html"]
        lines, live = terminal_lines(["mpirun", "-n", "2", str(programs / "train_gpt"), *shown[4:]],
                                     work)
        begin = next(i for i, line in enumerate(lines) if "parameters in" in line)
        table = next(i for i, line in enumerate(lines) if line.startswith("peak bytes"))
        draw_terminal(["$ " + " ".join(shown), *lines[begin:begin + 2], live, "...",
                       *[line for line in lines[begin + 2:table] if line],
                       *lines[table:table + 7], "...", *[l for l in lines if "are equal" in l]],
                      PICTURES / "terminal.svg")
        screenshot(work / "run.html", PICTURES / "report.png", "1180,880")
        subprocess.run(["mpirun", "-n", "3", str(programs / "train_gpt"), "--data", "text.txt",
                        "--steps", "60", "--micro-batch", "4", "--stage", "3",
                        "--report", "three.html", "--quiet"],
                       cwd=work, check=True, env={**os.environ, **ENVIRONMENT})
        screenshot(work / "three.html", PICTURES / "report_stage3.png", "1180,790",
                   "main > :not(div:not(.tiles)), #norms, #memory, #traffic, #settings")


if __name__ == "__main__":
    main()
