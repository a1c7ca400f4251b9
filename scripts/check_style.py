#!/usr/bin/env python3
"""Checks the rules of the house style that a script can check: sizes, whitespace, headers, marks of
unfinished work, includes between folders, and the word "rank" in nn/ and models/. Also checks that
the sources still have the lines that docs/ quote, and that a page names the file that it quotes.

Usage: scripts/check_style.py [ROOT]. Prints a line per finding, and exits with 1 if there is any.
"""
import functools
import pathlib
import re
import sys

MAX_FILE_LINES = 400
MAX_KERNEL_FILE_LINES = 800  # of .cu files
MAX_FUNCTION_LINES = 60
MAX_COLUMNS = 100

# For each folder, the allowed beginnings of quoted includes in its files. Files of other folders
# may include anything.
ARROWS = {
    "core": ("core/",),
    "nn": ("core/", "nn/"),
    "dist": ("core/", "dist/"),
    "optim": ("core/", "dist/", "optim/", "nn/parameter.h", "nn/parameter_source.h",
              "nn/module.h"),
    "models": ("core/", "nn/", "models/"),
    "data": ("core/", "data/"),
    "train": ("core/", "nn/", "dist/", "optim/", "models/", "data/", "train/"),
    "emulated": ("core/", "dist/backoff.h", "emulated/"),
    "apps": ("core/", "nn/", "dist/", "optim/", "models/", "data/", "train/", "apps/", "tessera.h"),
}
WITHOUT_MPI = ("core", "nn", "optim", "models", "data", "train")
FOLDERS = (*ARROWS, "course", "tests", "bench", "cmake", "scripts", ".ci")
CPP_SUFFIXES = (".h", ".cpp", ".cu", ".cuh")
SUFFIXES = (*CPP_SUFFIXES, ".py", ".sh", ".cmake", ".in", ".js", ".css")
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" "DO", "FIX" "ME", "X" "XX", "HA" "CK")) + r")\b")

LITERALS = re.compile(
    r'R"(?P<tag>[^()\s\\]{0,16})\(.*?\)(?P=tag)"'  # raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'"  # a ' after a digit is a separator: 1'000
    r"|//[^\n]*|/\*.*?\*/"
    r"|^[ \t]*\#(?:\\\n|[^\n])*",  # preprocessor
    re.DOTALL | re.MULTILINE,
)
CONTAINER = re.compile(r"(?:(?:inline|static|constexpr|typedef|export|extern)\s+)*"
                       r"(?:namespace|class|struct|union|enum|extern)\b")
BALANCED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # parentheses, three deep
ACCESS = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
SPACE = re.compile(r"(?:\s|(?:public|private|protected)\s*:(?!:))*")


def blank(match):
    return "\n" * match.group().count("\n") or " "


def only_code(text):
    """Returns the text without strings, comments and directives, with the same line numbers.

    Also replaces a macro call at the beginning of a line with a semicolon, unless a semicolon or
    the brace of a body follows the call.
    """
    text = LITERALS.sub(blank, text)
    call = re.compile(r"^[ \t]*[A-Z][A-Z0-9_]+" + BALANCED + r"(?=\s*[\w}])", re.MULTILINE)
    return call.sub(lambda match: ";" + blank(match), text)


def without_template(head):
    """Returns a declaration without its `template <...>`."""
    match = re.match(r"\s*template\s*<", head)
    if not match:
        return head.strip()
    depth = 1
    for i in range(match.end(), len(head)):
        depth += {"<": 1, ">": -1}.get(head[i], 0)
        if depth == 0:
            return without_template(head[i + 1:])
    return head.strip()


def kind_of(head):
    """Returns what a brace outside functions opens: a container, function or initialiser.

    `head` is the declaration before the brace.
    """
    if head.count("(") > head.count(")"):
        return "initialiser"  # or a lambda in an argument list
    head = ACCESS.sub("", head)
    head = without_template(re.sub(r"\[\[.*?\]\]", "", head, flags=re.DOTALL))
    if CONTAINER.match(head) or not head:
        return "container"
    if re.search(r"=\s*\[", head):
        return "function"  # a lambda with a name
    outside = re.sub(r"operator\s*(?:\(\)|\[\]|[^\s\w(]+)", "operator_", head)
    while "(" in outside and (inner := re.sub(r"\([^()]*\)", "@", outside)) != outside:
        outside = inner
    return "function" if "@" in outside and "=" not in outside else "initialiser"


def functions(text):
    """Returns (first line, last line) of each function that is not inside another function."""
    text = only_code(text)
    found, open_braces = [], []  # an open brace is (kind, start of its declaration)
    start = 0  # where the declaration being read begins
    inside = 0  # number of open braces of functions and initialisers, and of braces inside these
    for match in re.finditer(r"[{};]", text):
        position, token = match.start(), match.group()
        if token == "{":
            kind = "inner" if inside else kind_of(text[start:position])
            open_braces.append((kind, start))
            inside += kind != "container"
        elif token == "}" and open_braces:
            kind, start_of_kind = open_braces.pop()
            inside -= kind != "container"
            # The declaration may continue after this brace, if the brace belongs to a constructor's
            # initialiser, as in `: a_{1}, b_{2} {`, or to a lambda among the arguments of a call.
            goes_on = kind != "container" and re.match(r"\s*[,{)]", text[position + 1:])
            if kind == "function" and not goes_on:
                first = SPACE.match(text, start_of_kind).end()
                found.append((text.count("\n", 0, first) + 1, text.count("\n", 0, position) + 1))
            if not inside and goes_on:
                start = start_of_kind
                continue
        if not inside:
            start = position + 1
    return found


def check_lines(path, text):
    lines = text.split("\n")
    if text and not text.endswith("\n"):
        yield len(lines), "no newline at the end of the file"
    most = MAX_KERNEL_FILE_LINES if path.suffix == ".cu" else MAX_FILE_LINES
    if text.count("\n") > most:
        yield most + 1, f"file has more than {most} lines"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield number, f"line has {len(line)} columns, more than {MAX_COLUMNS}"
        if "\t" in line:
            yield number, "tab"
        if line != line.rstrip():
            yield number, "space at the end of the line"
        if unfinished := UNFINISHED.search(line):
            yield number, f"{unfinished.group()}: finish it, or open an issue"


def check_includes(root, path, text):
    folder = path.parts[0]
    for number, line in enumerate(text.split("\n"), 1):
        include = re.match(r'\s*#\s*include\s*([<"])([^>"]+)', line)
        if not include:
            continue
        quoted, name = include.group(1) == '"', include.group(2)
        if quoted and not (root / name).is_file():
            yield number, f'"{name}" is not a path from the root of the checkout'
        elif quoted and folder in ARROWS and not name.startswith(ARROWS[folder]):
            yield number, f"{folder}/ may not include {name}"
        elif not quoted and name == "mpi.h" and folder in WITHOUT_MPI:
            yield number, f"{folder}/ may not use MPI, which belongs in dist/"


def check_words(path, text):
    """Layers and models must not mention ranks. `rank()`, a number of axes, is allowed."""
    if path.parts[0] in ("nn", "models"):
        for number, line in enumerate(text.split("\n"), 1):
            if re.search(r"\branks?\b(?!\(\))", line):
                yield number, f"{path.parts[0]}/ mentions a rank"


def check_cpp(root, path, text):
    yield from check_includes(root, path, text)
    yield from check_words(path, text)
    if path.suffix in (".h", ".cuh"):
        lines = [line for line in text.split("\n") if line.strip()]
        if "#pragma once" not in lines[:40]:
            yield 1, "header without #pragma once"
        opening = next((line for line in lines if line != "#pragma once"), "")
        if not opening.startswith(("//", "/*")):
            yield 1, "header does not begin with what it is for"
    if path.parts[0] != "tests":
        for first, last in functions(text):
            if last - first + 1 > MAX_FUNCTION_LINES:
                length = last - first + 1
                yield first, f"function has {length} lines, more than {MAX_FUNCTION_LINES}"


def check_quotes(root, path):
    """A ```cpp block of docs/ without a main must be consecutive lines of one source. The page
    must name this source above the block."""
    text = (root / path).read_text(encoding="utf-8")
    for match in re.finditer(r"^```cpp\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        quote = "\n" + "".join(line.strip() + "\n" for line in match.group(1).splitlines())
        if "int main" in quote:
            continue
        number = text.count("\n", 0, match.start()) + 1
        above = text[:match.start()]
        quoted = [source for source, lines in stripped(root).items() if quote in lines]
        if not quoted:
            yield number, "no source has these lines any more"
        elif not any(re.search(rf"\b{re.escape(source.name)}\b", above) for source in quoted):
            yield number, f"{quoted[0]} has these lines, and is not named above them"


@functools.cache
def stripped(root):
    """Returns the text of each C++ source, without indentation, by path."""
    return {path: "\n" + "".join(line.strip() + "\n"
                                 for line in (root / path).read_text().splitlines())
            for path in sources(root) if path.suffix in CPP_SUFFIXES}


def sources(root):
    paths = list(root.glob("*"))
    for folder in FOLDERS:
        paths += (root / folder).rglob("*")
    for path in sorted(paths):
        if path.is_file() and (path.suffix in SUFFIXES or path.name == "CMakeLists.txt"):
            yield path.relative_to(root)


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    files = findings = 0
    for path in sources(root):
        text = (root / path).read_text(encoding="utf-8")
        found = list(check_lines(path, text))
        if path.suffix in CPP_SUFFIXES:
            found += check_cpp(root, path, text)
        for number, message in sorted(found):
            print(f"{path}:{number}: {message}")
        files += 1
        findings += len(found)
    for path in sorted((root / "docs").glob("*.md")):
        for number, message in check_quotes(root, path.relative_to(root)):
            print(f"{path.relative_to(root)}:{number}: {message}")
            findings += 1
    print(f"style: {files} files, {findings} findings")
    return 1 if findings or not files else 0


if __name__ == "__main__":
    sys.exit(main())
