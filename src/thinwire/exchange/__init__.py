"""The runtime: units, the pipeline that runs their programs during backward, and the handle that users hold."""

from thinwire.exchange.attach import attach
from thinwire.exchange.handle import Sync
from thinwire.exchange.pipeline import ExchangeError
from thinwire.exchange.stats import Figures, Stats

__all__ = ["ExchangeError", "Figures", "Stats", "Sync", "attach"]
