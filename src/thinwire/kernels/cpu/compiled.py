"""How the loops are compiled: without the GIL, and kept on disk where there is a place for it."""

import functools
import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


def _digest(folder: Path) -> str:
    """Of all sources in a folder."""
    sources = b"".join(source.read_bytes() for source in sorted(folder.glob("*.py")))
    return hashlib.blake2b(sources, digest_size=6).hexdigest()


_SOURCES = _digest(Path(__file__).parent)


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: numba's ``njit`` with what all kernels have in common.

    Compiled code is kept in ``__pycache__`` beside the source, or in the user's cache folder. Where neither can be
    written, every process compiles anew, and a warning says how to change that.
    """
    if function is None:
        return functools.partial(compiled, **options)
    # numba looks for changes only in the function's own file, but kernels inline what is in others beside it. The name
    # is part of what compiled code is found by.
    function.__qualname__ += f"_{_SOURCES}"
    try:
        return njit(nogil=True, cache=True, **options)(function)
    except RuntimeError as error:
        warnings.warn(
            f"compiled kernels cannot be kept, so every start compiles them anew; set NUMBA_CACHE_DIR to a folder that "
            f"can be written ({error})",
            stacklevel=2,
        )
        return njit(nogil=True, **options)(function)
