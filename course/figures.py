#!/usr/bin/env python3
"""Draws the figures of all lessons: calls draw(FOLDER/figures) of each lesson's figures.py.

Usage: course/figures.py [--check]. --check changes no file, and fails if a stored figure differs
from the figure that its script draws.
"""
import importlib.util
import pathlib
import sys
import tempfile

COURSE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(COURSE / "lib"))
sys.dont_write_bytecode = True


def draw(script, folder):
    spec = importlib.util.spec_from_file_location(f"figures_{script.parent.name}", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.draw(folder)


def main(arguments):
    if arguments not in ([], ["--check"]):
        sys.exit(__doc__)
    stale = 0
    for script in sorted(COURSE.glob("*/figures.py")):
        target = script.parent / "figures"
        if not arguments:
            target.mkdir(exist_ok=True)
            draw(script, target)
            continue
        with tempfile.TemporaryDirectory() as folder:
            draw(script, pathlib.Path(folder))
            drawn = {path.name: path.read_text() for path in pathlib.Path(folder).glob("*.svg")}
        stored = {path.name: path.read_text() for path in target.glob("*.svg")}
        for name in sorted(drawn.keys() | stored.keys()):
            if drawn.get(name) != stored.get(name):
                print(f"{target / name} is stale: run course/figures.py")
                stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
