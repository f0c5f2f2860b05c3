"""The vocabulary shared by planner, exchange and reports: tasks, options, strategies. Plain data, no torch."""

from thinwire.strategy.option import SCHEMES, UNCOMPRESSED, Option, choose_scheme, flat_option
from thinwire.strategy.strategy import Choice, Strategy
from thinwire.strategy.tasks import Compute, Place, Routine, Task

__all__ = [
    "SCHEMES",
    "UNCOMPRESSED",
    "Choice",
    "Compute",
    "Option",
    "Place",
    "Routine",
    "Strategy",
    "Task",
    "choose_scheme",
    "flat_option",
]
