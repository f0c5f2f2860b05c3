"""Kernels compile also where compiled code cannot be kept."""

import shutil
import subprocess
import sys

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


def test_compiled_code_follows_what_a_kernel_inlines(tmp_path):
    """Numba itself looks at a kernel's own file alone, and would go on with what was compiled before."""
    shutil.copy(module.__file__, tmp_path / "compiled.py")
    (tmp_path / "kernel.py").write_text(
        "from compiled import compiled\nfrom helper import helper\n\n@compiled\ndef kernel(x):\n    return helper(x)\n"
    )
    results = []
    for factor in (2, 3, 2):
        helper = f"from compiled import compiled\n\n@compiled\ndef helper(x):\n    return {factor} * x\n"
        (tmp_path / "helper.py").write_text(helper)
        command = [
            sys.executable,
            "-c",
            "from kernel import kernel; print(kernel(1), sum(kernel.stats.cache_hits.values()))",
        ]
        results.append(subprocess.check_output(command, cwd=tmp_path, text=True, timeout=60).split())
    assert results == [["2", "0"], ["3", "0"], ["2", "1"]]
