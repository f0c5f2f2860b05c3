"""How the loops are compiled: without the GIL, and kept on disk where there is a place for it."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: numba's ``njit`` with what all kernels have in common.

    Compiled code is kept in ``__pycache__`` beside the source, or in the user's cache folder. Where neither can be
    written, every process compiles anew, and a warning says how to change that.
    """
    if function is None:
        return functools.partial(compiled, **options)
    try:
        return njit(nogil=True, cache=True, **options)(function)
    except RuntimeError as error:
        warnings.warn(
            f"compiled kernels cannot be kept, so every start compiles them anew; set NUMBA_CACHE_DIR to a folder that "
            f"can be written ({error})",
            stacklevel=2,
        )
        return njit(nogil=True, **options)(function)
