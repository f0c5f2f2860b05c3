"""Train data-parallel PyTorch models over slow networks as if the network were fast."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thinwire.compress import Compressor, Key, parse, register
    from thinwire.exchange import ExchangeError, Figures, Stats, Sync
    from thinwire.exchange.attach import attach
    from thinwire.strategy import Choice, Option, Strategy

__version__ = "0.1.0"

__all__ = [
    "Choice",
    "Compressor",
    "ExchangeError",
    "Figures",
    "Key",
    "Option",
    "Stats",
    "Strategy",
    "Sync",
    "attach",
    "parse",
    "register",
]


def __getattr__(name: str) -> object:
    # Importing torch takes seconds: it waits for the first use of a name, so that the command line answers at once.
    if name in __all__:
        for home in ("thinwire.exchange", "thinwire.compress", "thinwire.strategy"):
            if hasattr(module := import_module(home), name):
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
