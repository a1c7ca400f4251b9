#!/usr/bin/env python3
"""The operations of a GPT's step on a GPU: launches, bytes, operations, and the least time.

  bench/gpu_operations.py --bin build/emulated/bin            prints the table
  bench/gpu_operations.py --bin build/emulated/bin --update   writes it to docs/cuda.md
  bench/gpu_operations.py --bin build/emulated/bin --check    compares it with docs/cuda.md
  bench/gpu_operations.py --times times.txt --device "NVIDIA H200"    stores the table's measured ms

Launches are counted: train_gpt runs on the emulated device with one and with two layers. The
difference is the number of launches of a layer. The floating-point operations of matrix products
outside attention are counted too, and must equal this program's formulas. Bytes are computed from
the tensors that each pass over memory reads and writes (the function costs says which). The least
time is that of an H200 (SXM) at the rates of its data sheet: 4.8 TB/s, and 989 TFLOPS of dense
bf16 products. No operation reaches these rates: square products reach 72 %, and copies 89 %.

Measured times come from bench_kernel_times, which a GPU's driver loads into a program:

  CUDA_INJECTION64_PATH=libbench_kernel_times.so TESSERA_KERNEL_TIMES=times.txt bench_gpt_step \
    --device cuda --preset gpt2 --context 1024 --batch 64 --precision bf16 --warmup 2 --steps 8

--times adds them up by operation, per step, and keeps the sums in bench/gpu/operation_times.json.

Exit code: 0; 1 if --check finds a difference; 2 for any other failure.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs/cuda.md"
MEASURED = ROOT / "bench/gpu/operation_times.json"
BEGIN = "<!-- bench/gpu_operations.py --update writes from here -->\n"
END = "<!-- to here -->\n"
MEMORY = 4.8e12    # bytes per second
PRODUCTS = 989e12  # operations per second

Shape = collections.namedtuple("Shape", "sequences tokens width layers heads vocabulary")
GPT2 = Shape(sequences=64, tokens=1024, width=768, layers=12, heads=12, vocabulary=50257)
SMALL = Shape(sequences=2, tokens=64, width=128, layers=1, heads=2, vocabulary=1000)
# The number of chunks of rows in which the head's logits are computed
# (core/ops/linear_cross_entropy.h).
CHUNKS = 4

# A kernel or call belongs to the first operation whose pattern occurs in its name.
OPERATIONS = [
    ("head", r"cross_entropy|check_targets|ScaleBy"),
    ("attention", r"forward_tile|query_gradients|key_gradients|row_products"),
    ("GELU", r"Gelu"),
    ("layer norms", r"norm_(forward|backward|finish)_kernel"),
    ("bias gradients", r"column_sums_kernel"),
    ("embedding", r"embedding|position_backward"),
    ("end of the step", r"map_kernel|update_kernel|square_sum|sum_blocks|sum_sums|end_step|"
                        r"partial_sums|store_kernel|cudaMem|^mem(cpy|set)$"),
]


# Matches the names of the libraries' GPU kernels for matrix products.
LIBRARY_PRODUCT = re.compile(r"nvjet|cutlass|gemm|splitKreduce", re.IGNORECASE)


def stop(text):
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def record(binaries, shape, steps, folder):
    """Runs steps on the emulated device; returns {name of a kernel or call: launches}."""
    text = folder / "text.txt"
    text.write_text("the emulated device counts what it launches\n" * 200)
    path = folder / "launches"
    environment = {**os.environ, "TESSERA_EMULATED_LAUNCHES": str(path), "OMP_NUM_THREADS": "1",
                   "TESSERA_EMULATED_DEVICES": "1"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    command = [binaries / "train_gpt", "--data", text, "--device", "cuda", "--tune", "off",
               "--precision", "bf16", "--layers", shape.layers, "--heads", shape.heads, "--width",
               shape.width, "--context", shape.tokens, "--vocab", shape.vocabulary,
               "--global-batch", shape.sequences, "--micro-batch", shape.sequences, "--loss-rows",
               shape.sequences * shape.tokens // CHUNKS, "--warmup", 0, "--steps", steps,
               "--eval-every", 0, "--quiet"]
    result = subprocess.run([str(word) for word in command], env=environment, text=True,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if result.returncode != 0:
        stop(f"train_gpt failed: {result.stderr}")
    lines = [line.split("\t", 1) for line in path.read_text().splitlines()]
    return collections.Counter({name: int(count) for count, name in lines})


def padded(vocabulary):
    """Returns the vocabulary, padded for the head's products (core/ops/linear_cross_entropy.h)."""
    return -(-vocabulary // 64) * 64


def operation_of(name, shape):
    # Products of the head have the padded vocabulary as one of their sizes.
    if name.startswith("cublasLtMatmul"):
        sizes = map(int, name.split()[1:])
        return "head" if any(size == padded(shape.vocabulary) for size in sizes) else "products"
    for operation, pattern in OPERATIONS:
        if re.search(pattern, name):
            return operation
    stop(f"no operation is known for {name}")


def product_operations(launches, shape):
    """Returns {operation: floating-point operations} of the recorded matrix products."""
    sums = collections.Counter()
    for name, count in launches.items():
        if name.startswith("cublasLtMatmul"):
            m, n, k = map(int, name.split()[1:])
            sums[operation_of(name, shape)] += 2 * m * n * k * count
    return sums


def parameters_of(s):
    block = 12 * s.width * s.width + 13 * s.width
    return s.layers * block + (s.vocabulary + s.tokens + 2) * s.width


def costs(s):
    """Returns {operation: (bytes, FLOPs of products)} of a step with one micro-batch.

    Values, gradients, activations and logits have 2 bytes each; sums have 4.
    """
    rows = s.sequences * s.tokens
    values = rows * s.width  # elements of an activation
    logits = rows * padded(s.vocabulary)
    parameters = parameters_of(s)
    block = 12 * s.width * s.width
    return {
        # Forward, dx and dweight of four linear layers, each with two operands and a result.
        "products": (s.layers * 3 * 2 * (16 * values + block), s.layers * 3 * 2 * rows * block),
        # Logits are written, read for the loss, and overwritten by their gradient, which two
        # products read. The second read of the logits, for the gradient, comes from the cache and
        # is not counted. The weight is copied to be padded. Every chunk writes the sum of the
        # weight's gradient, and all chunks but the first read it. At the end, the gradients of
        # input and weight are multiplied by the gradient of the loss.
        "head": (logits * 2 * (3 + 2) + s.vocabulary * s.width * (2 * 4 * CHUNKS + 2 + 4) +
                 2 * 2 * values, 3 * 2 * logits * s.width),
        # Forward reads qkv and writes y. Backward reads y and dy for the rows' sums, reads qkv and
        # dy twice, and writes dqkv. Forward has 2 products and backward 7. The causal mask halves
        # each of them.
        "attention": (s.layers * 2 * (4 + 2 + 8 + 3) * values,
                      s.layers * (2 + 7) * rows * s.tokens * s.width),
        # Backward recomputes GELU's output, which dweight of the next linear layer reads.
        "GELU": (s.layers * 2 * (2 + 2 + 3) * 4 * values, 0),
        # Forward reads x and the residual, and writes their sum and y. The first norm has no
        # residual, which the formula neglects. Backward recomputes y from x. It then reads dy, x
        # and the residual's gradient, and writes dx.
        "layer norms": ((2 * s.layers + 1) * 2 * (4 + 2 + 4) * values, 0),
        "bias gradients": (s.layers * 2 * 9 * values, 0),
        "embedding": (2 * 5 * values + 2 * s.vocabulary * s.width, 0),
        # The micro-batch's gradient is read and stored as an f32 sum, which the norm and the update
        # read. The update reads and writes f32 weights and two moments, and writes bf16 weights.
        "end of the step": (parameters * (2 + 4 + 4 + 4 + 3 * 8 + 2), 0),
    }


def launches_of_step(binaries):
    """Returns {operation: launches} of a step of GPT-2. Checks FLOPs against the formulas."""
    counts = {}
    for layers in (1, 2):
        shape = SMALL._replace(layers=layers)
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            two = record(binaries, shape, 2, folder)
            two.subtract(record(binaries, shape, 1, folder))
        counts[layers] = two
        recorded = product_operations(two, shape)
        for operation, of_formula in costs(shape).items():
            # Attention's products are within its own kernels.
            if operation in ("products", "head") and recorded[operation] != of_formula[1]:
                stop(f"{operation}: {recorded[operation]} operations were recorded, and the "
                     f"formula gives {of_formula[1]}")
    launches = collections.Counter()
    for name in counts[2]:
        of_layer = counts[2][name] - counts[1][name]
        launches[operation_of(name, SMALL)] += (counts[1][name] - of_layer +
                                                GPT2.layers * of_layer)
    # The padded copy of the head's weight is a fill and a copy. Their names do not show the head,
    # so operation_of has counted them for the end of the step.
    if padded(GPT2.vocabulary) > GPT2.vocabulary:
        launches.update({"head": 2, "end of the step": -2})
    return launches


def steps_of(path):
    """Returns the kernels of each step: lists of (start, end, name), in ns and in order of time.

    A step begins with the lookup in the embedding. The first steps, which load kernels, and the
    last one, which may be incomplete, are left out.
    """
    kernels = []
    for line in path.read_text().splitlines():
        start, end, name = line.split(maxsplit=2)
        kernels.append((int(start), int(end), name))
    kernels.sort()
    begins = [i for i, kernel in enumerate(kernels) if "embedding_kernel" in kernel[2]]
    steps = [kernels[a:b] for a, b in zip(begins, begins[1:])][2:]
    if not steps:
        stop(f"{path} has {len(begins)} steps, expected at least 4")
    return steps


def measured(path):
    """Returns {operation: ms of a step} from a file that bench_kernel_times has written."""
    sums = collections.Counter()
    steps = steps_of(path)
    for kernels in steps:
        # The head runs from the end of the final norm until its gradients are scaled.
        loss = next(i for i, kernel in enumerate(kernels) if "cross_entropy" in kernel[2])
        norm = max(i for i in range(loss) if "norm_forward" in kernels[i][2])
        scaled = next(i for i, kernel in enumerate(kernels) if "ScaleBy" in kernel[2])
        for i, (start, end, name) in enumerate(kernels):
            if norm < i < scaled:
                operation = "head"
            elif LIBRARY_PRODUCT.search(name):
                operation = "products"
            else:
                operation = operation_of(name, GPT2)
            sums[operation] += (end - start) / len(steps) / 1e6
    return dict(sums)


def table(binaries):
    launches = launches_of_step(binaries)
    times = json.loads(MEASURED.read_text())["ms"]
    lines = ["| operation | launches | GB | TFLOP | least ms | measured ms |",
             "| --- | --- | --- | --- | --- | --- |"]
    sums = [0, 0.0, 0.0, 0.0, 0.0]
    for operation, (moved, computed) in costs(GPT2).items():
        least = 1e3 * max(moved / MEMORY, computed / PRODUCTS)
        row = [launches[operation], moved / 1e9, computed / 1e12, least, times[operation]]
        sums = [a + b for a, b in zip(sums, row)]
        lines.append("| {} | {:,} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |".format(operation, *row))
    lines.append("| all | {:,} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |".format(*sums))
    return "".join(line + "\n" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path)
    parser.add_argument("--times", type=pathlib.Path, help="a file that bench_kernel_times wrote")
    parser.add_argument("--device", help="the name of the GPU on which --times was measured")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--update", action="store_true")
    choice.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.times:
        if not arguments.device:
            parser.error("--times needs --device")
        kept = {"device": arguments.device, "ms": measured(arguments.times)}
        MEASURED.write_text(json.dumps(kept, indent=1) + "\n")
        return
    if not arguments.bin:
        parser.error("--bin or --times is missing")
    if not (arguments.bin / "train_gpt").is_file():
        stop(f"{arguments.bin} has no train_gpt; build the preset emulated first")
    made = table(arguments.bin.resolve())
    if not (arguments.update or arguments.check):
        print(made, end="")
        return
    document = DOCUMENT.read_text()
    begin, end = document.find(BEGIN), document.find(END)
    if begin < 0 or end < begin:
        stop(f"{DOCUMENT} has no place for the table")
    begin += len(BEGIN)
    if arguments.update:
        DOCUMENT.write_text(document[:begin] + made + document[end:])
    elif document[begin:end] != made:
        print("the table in docs/cuda.md differs from this one; write it with --update")
        print(made, end="")
        sys.exit(1)


if __name__ == "__main__":
    main()
