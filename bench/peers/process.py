"""Sets a peer's process up before torch is loaded, and reads figures of the process."""
import ctypes
import os
import re


def before_torch(threads, keep_memory=True):
    """Set OpenMP's number of threads and remove OpenBLAS's variables. Call before `import torch`.

    Both libraries read their variables when they are loaded.

    `keep_memory` tells malloc to reuse large blocks instead of returning them to the system: fresh
    pages cost more than AdamW's arithmetic. PyTorch's tuning guide uses jemalloc for this purpose.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS"):
        os.environ.pop(name, None)  # a forced core type makes OpenBLAS at least twice as slow
    if keep_memory:
        keep_freed_memory()


def keep_freed_memory():
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    libc = ctypes.CDLL(None)
    for option, value in ((m_mmap_max, 0), (m_trim_threshold, 2**31 - 1), (m_top_pad, 64 << 20)):
        libc.mallopt(option, value)


def import_torch():
    """Import torch. Return the peak memory so far in KiB, to be subtracted from later peaks."""
    import torch
    if hasattr(torch, "compile"):
        import torch._dynamo  # takes 80 MiB; the first optimizer would import it later
    return vm_hwm_kib()


def vm_hwm_kib():
    """Return the peak resident memory so far, in KiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def blas_library():
    import torch
    built_with = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    # With "generic", Debian's alternatives system decides which BLAS library is loaded.
    if built_with and built_with.group(1) != "generic":
        return [built_with.group(1)]
    with open("/proc/self/maps") as file:
        return sorted({line.split()[-1] for line in file if "blas" in line and ".so" in line})


def cpu_capability():
    """Return the vector instructions that torch's own loops use, such as AVX2."""
    import torch
    lines = torch.__config__.show().splitlines()
    return next((line.split(":")[1].strip() for line in lines if "CPU capability" in line), "")
