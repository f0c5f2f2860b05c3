"""What the workers are asked to do, and the lines of JSON that they answer with."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from thinwire.demo.model import ModelSize

EVENT_PREFIX = "thinwire-event "
"""Starts a line that a worker prints for the program that started it; all other lines are for people."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Several ways to exchange gradients (modes), trained side by side on the same batches.

    Modes take turns, ``steps_per_round`` steps each, so that whatever else the machine does falls on all alike. The
    first round is for settling down and is not measured: memory is touched first, DDP rebuilds its buckets, and
    thinwire does not compress yet while the model changes fastest (``num_uncompressed_steps``).
    """

    modes: tuple[str, ...]
    num_rounds: int
    steps_per_round: int
    model: ModelSize = field(default_factory=ModelSize)
    batch_size: int = 4
    learning_rate: float = 4e-4
    num_warmup_steps: int = 5
    num_uncompressed_steps: int = 0
    num_held_out_batches: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_rounds", "steps_per_round", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is 1 or more")

    @property
    def num_steps(self) -> int:
        """Optimizer steps of every mode."""
        return self.num_rounds * self.steps_per_round

    def to_json(self) -> str:
        """One line that :meth:`from_json` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The inverse of :meth:`to_json`."""
        settings = json.loads(text)
        settings["modes"] = tuple(settings["modes"])
        settings["model"] = ModelSize(**settings["model"])
        return cls(**settings)


def format_event(event: Mapping[str, Any]) -> str:
    """The line that tells the starting program what happened."""
    return EVENT_PREFIX + json.dumps(event)


def parse_event(line: str) -> dict[str, Any] | None:
    """What :func:`format_event` wrote, wherever in the line it starts; None if the line is for people."""
    _, prefix, text = line.partition(EVENT_PREFIX)
    event: dict[str, Any] | None = json.loads(text) if prefix else None
    return event
