#!/usr/bin/env python3
"""Print how many GPUs CUDA's programs see, 0 without a driver.

nvidia-smi does not say this: it ignores CUDA_VISIBLE_DEVICES, and lists the parts of a divided GPU
(MIG), of which a program sees only one. So CUDA's driver is asked.
"""
import ctypes


def visible_gpus():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


if __name__ == "__main__":
    print(visible_gpus())
