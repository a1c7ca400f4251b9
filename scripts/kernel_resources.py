#!/usr/bin/env python3
"""Reports registers, spilled bytes and shared memory of every CUDA kernel, as ptxas prints them.

  scripts/kernel_resources.py --build build/release            compares with the stored table
  scripts/kernel_resources.py --build build/release --update   writes the table

Compilers differ in these numbers, so the table names the version of nvcc. Kernels are compiled for
sm_90 with the flags of the build. No kernel runs, so no GPU is needed. A kernel that spills
keeps values in memory instead of registers, which costs time in every launch. Such kernels are
listed.

Exit code: 0 equal, or written; 1 different or spilling; 2 bad arguments, or a kernel that does not
compile; 77 no nvcc, or another version.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/cuda/kernel_resources.txt"
ARCHITECTURE = "sm_90"
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '\w+'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


def stop(code, text):
    print(text, file=sys.stderr)
    sys.exit(code)


def sources(build):
    """Returns [(file, nvcc's command)] of the build's .cu files.

    The commands are without the input file, the output file and the GPU architectures.
    """
    path = build / "compile_commands.json"
    if not path.is_file():
        stop(2, f"error: {path} does not exist; configure the build first")
    found = []
    for entry in json.loads(path.read_text()):
        if not entry["file"].endswith(".cu"):
            continue
        words = shlex.split(entry["command"])
        if "nvcc" not in words[0]:
            continue
        kept = [word for word in words[:words.index("-c")] if not word.startswith("--generate")]
        found.append((pathlib.Path(entry["file"]), kept))
    return sorted(found)


def version_of(nvcc):
    text = subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return re.search(r"V([\d.]+)", text)[1]


def kernels_of(source, command):
    """Compiles a file; returns [(mangled name, registers, spilled bytes, shared bytes)]."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [*command, "-cubin", f"-arch={ARCHITECTURE}", "-Xptxas", "-v", "-o",
             os.path.join(folder, "kernels.cubin"), str(source)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        stop(2, f"error: {source} does not compile:\n{result.stdout[-3000:]}")
    found = []
    name, spilled = None, 0
    for line in result.stdout.splitlines():
        if entry := ENTRY.search(line):
            name = entry[1]
        elif name and (spills := SPILLS.search(line)):
            spilled = int(spills[2]) + int(spills[3])
        elif name and (used := USED.search(line)):
            shared = SHARED.search(line)
            found.append((name, int(used[1]), spilled, int(shared[1]) if shared else 0))
            name, spilled = None, 0
    return found


def demangled(names):
    result = subprocess.run(["c++filt"], input="\n".join(names), stdout=subprocess.PIPE, text=True,
                            check=True).stdout.splitlines()
    short = []
    for name in result:
        name = re.sub(r"\(anonymous namespace\)::|tessera::|cuda::|^void ", "", name)
        short.append(re.sub(r"\((int|bool|long|unsigned int)\)", "", name.split(">(")[0] + ">"
                            if ">(" in name else name.split("(")[0]))
    return dict(zip(names, short))


def measure(build, jobs):
    """Returns the table's lines: a heading, and a line for each kernel."""
    files = sources(build)
    if not files:
        stop(77, "skipped: the build has no CUDA, because there is no nvcc")
    version = version_of(files[0][1][0])
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        lists = list(pool.map(lambda item: kernels_of(*item), files))
    names = demangled([kernel[0] for kernels in lists for kernel in kernels])
    lines = set()
    for (source, _), kernels in zip(files, lists):
        for name, registers, spilled, shared in kernels:
            lines.add(f"{source.relative_to(ROOT)} {names[name]}: {registers} registers, "
                      f"{spilled} bytes spilled, {shared} bytes shared")
    return [f"nvcc {version}, {ARCHITECTURE}", *sorted(lines)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    stored = TABLE.read_text().splitlines() if TABLE.is_file() else []
    files = sources(arguments.build)
    if not arguments.update and stored and files:
        here = f"nvcc {version_of(files[0][1][0])}, {ARCHITECTURE}"
        if here != stored[0]:
            stop(77, f"skipped: the stored table is for {stored[0]}, but this is {here}")
    found = measure(arguments.build, arguments.jobs)
    if arguments.update:
        TABLE.write_text("\n".join(found) + "\n")
        print(f"{TABLE.relative_to(ROOT)}: {len(found) - 1} kernels")
        return
    differing = [f"- {line}" for line in stored if line not in found]
    differing += [f"+ {line}" for line in found if line not in stored]
    spilling = [line for line in found[1:] if ", 0 bytes spilled" not in line]
    for line in differing + [f"spills: {line}" for line in spilling]:
        print(line)
    if differing:
        print("The table differs; if that is intended, write it again with --update.")
    sys.exit(1 if differing or spilling else 0)


if __name__ == "__main__":
    main()
