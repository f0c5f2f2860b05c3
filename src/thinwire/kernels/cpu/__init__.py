"""Kernels for CPUs: numba loops over contiguous float32 that LLVM vectorises.

They release the GIL and use one thread; parallelism is across calls, so no result depends on the number of threads.
Loops run over slices (``part = x[a:b]``, then ``part[i]`` from 0) because numba wraps negative indices, and only
where an index is plainly not negative does LLVM vectorise.
"""
