"""What a peer has to settle before torch is loaded, and what it reads about its own process."""
import ctypes
import os


def before_torch(threads, keep_memory=True):
    """Call before `import torch`: OpenMP and OpenBLAS read these when they are loaded.

    `keep_memory` tells malloc to reuse large blocks instead of returning them to the system,
    which PyTorch's tuning guide gets from jemalloc: fresh pages cost more than AdamW's arithmetic.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS"):
        os.environ.pop(name, None)  # a forced core type halves OpenBLAS's speed
    if keep_memory:
        keep_freed_memory()


def keep_freed_memory():
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    libc = ctypes.CDLL(None)
    for option, value in ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1), (m_top_pad, 64 << 20)):
        libc.mallopt(option, value)


def vm_hwm_kib():
    """Peak resident memory so far."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def blas_library():
    with open("/proc/self/maps") as file:
        return sorted({line.split()[-1] for line in file if "blas" in line and ".so" in line})


def cpu_capability():
    """The vector instructions of torch's own loops, such as AVX2."""
    import torch
    lines = torch.__config__.show().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "CPU capability" in line), "")
