"""Read and write .safetensors files with numpy alone, without ever loading a whole file.

    for name, array in safetensors_io.read("model.safetensors"): ...
    safetensors_io.write("out.safetensors", {"wte.weight": array})

Only the dtypes that the peers and fixtures need are known: little-endian F64, F32, I64, I32 and U8.
"""
import json
import struct

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
NAMES = {np.dtype(code): name for name, code in DTYPES.items()}


def read(path):
    """Yield (name, array). Plain reads, no mmap: mapped pages would count in VmHWM."""
    with open(path, "rb") as file:
        header_bytes = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(header_bytes))
        header.pop("__metadata__", None)
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            dtype = np.dtype(DTYPES[entry["dtype"]])
            file.seek(8 + header_bytes + begin)
            array = np.fromfile(file, dtype, (end - begin) // dtype.itemsize)
            yield name, array.reshape(entry["shape"])


def write(path, tensors, metadata=None):
    """Write `tensors`, a dict from names to arrays, or to functions that return arrays.

    Each function is called twice, for the header and for the data, so that the functions' arrays
    need not all exist at the same time.
    """
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    arrays = {n: (t if callable(t) else (lambda t=t: t)) for n, t in tensors.items()}
    for name, make in arrays.items():
        array = make()
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the data to 8 bytes, as the safetensors library does
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for make in arrays.values():
            file.write(make().tobytes())  # in C order, even if the array is a transposed view
