#!/usr/bin/env python3
"""Planted bugs: a lesson's bugs.txt says what to replace in its solution.cpp.

Usage: plant.py names BUGS | plant.py write BUGS NAME OUTPUT | plant.py message BUGS NAME

bugs.txt has a section for each bug:

    [a]
    message: a part of what the check must print on 3 ranks
    on 1 rank: a part of what it must print on 1 rank, or `passes`; by default, the message
    --- replace
    lines of the solution
    --- with
    other lines

The section [student] has only a message, which the check must print for the unfinished skeleton.
Bugs of one letter are exercises for students. Bugs with longer names only test that the check sees
the mistake.
"""
import pathlib
import re
import sys


def read(path):
    """Returns {name: ({ranks: message}, [(old, new), ...])}."""
    bugs = {}
    text = pathlib.Path(path).read_text()
    for section in re.split(r"^\[(?=\w+\]$)", text, flags=re.MULTILINE)[1:]:
        name, body = section.split("]\n", 1)
        message = re.search(r"^message: (.+)$", body, re.MULTILINE)
        if not message:
            sys.exit(f"{path}: bug {name} has no line 'message: ...'")
        alone = re.search(r"^on 1 rank: (.+)$", body, re.MULTILINE) or message
        edits = re.findall(r"^--- replace\n(.*?)^--- with\n(.*?)(?=^---|\Z)", body,
                           re.MULTILINE | re.DOTALL)
        bugs[name] = ({1: alone.group(1), 3: message.group(1)},
                      [(old, new.rstrip("\n") + "\n" if new.strip() else "")
                       for old, new in edits])
    return bugs


def buggy_source(path, name):
    """Returns the solution with the bug. Every text to replace must occur exactly once."""
    solution = pathlib.Path(path).parent / "solution.cpp"
    source = solution.read_text()
    for old, new in read(path)[name][1]:
        if source.count(old) != 1:
            sys.exit(f"{path}: bug {name} replaces a text that occurs {source.count(old)} times "
                     f"in {solution}:\n{old}")
        source = source.replace(old, new)
    return source


def main(action, path, *rest):
    if action == "names":
        print(*(name for name in read(path) if name != "student"))
    elif action == "write":
        pathlib.Path(rest[1]).write_text(buggy_source(path, rest[0]))
    elif action == "message":
        print(read(path)[rest[0]][0][3])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
