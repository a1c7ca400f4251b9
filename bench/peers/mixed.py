"""Pseudo-random numbers that are equal in a benchmark (bench/mixed.h) and in its PyTorch peer."""


def mixed(numbers):
    """Return MurmurHash3's finalizer of 32-bit numbers, as a NumPy array."""
    import numpy as np
    x = numbers.astype(np.uint32)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))
