"""Kernels compile also where compiled code cannot be kept."""

import numba
import pytest

from thinwire.kernels.cpu import compiled as module


def nowhere_to_keep(*, cache=False, **options):
    if cache:
        raise RuntimeError("no locator available")
    return numba.njit(**options)


def test_without_a_cache_folder_kernels_work_and_say_so(monkeypatch):
    monkeypatch.setattr(module, "njit", nowhere_to_keep)
    with pytest.warns(UserWarning, match=r"set NUMBA_CACHE_DIR .*no locator available"):

        @module.compiled
        def twice(x):
            return 2 * x

    with pytest.warns(UserWarning, match="NUMBA_CACHE_DIR"):

        @module.compiled(fastmath={"reassoc"})
        def thrice(x):
            return 3 * x

    assert (twice(4), thrice(4)) == (8, 12)
