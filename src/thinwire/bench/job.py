"""What the workers of a measurement are asked to do."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from thinwire.bench.method import COMPUTE, Method
from thinwire.bench.models import BUILT_IN
from thinwire.bench.workload import check_model

OPTIMIZERS = ("adamw", "sgd")
NUM_WARMUP_STEPS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Several methods, trained side by side on the same batches.

    Methods take turns, ``steps_per_turn`` steps each, so that whatever else the machine does falls on all alike.

    Raises:
        ValueError: for a setting out of range; the message says what is allowed.
    """

    methods: tuple[Method, ...]
    model: str = "lm"
    num_turns: int = 6
    steps_per_turn: int = 6
    """Even, so that methods that alternate between two kinds of steps do as many of each."""
    batch_size: int | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_model(self.model)
        names = [method.name for method in self.methods]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"methods are {', '.join(names) or 'none'}; give one or more, each once")
        for name in ("num_turns", "steps_per_turn"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; allowed is 1 or more")
        if self.batch_size is not None and self.model not in BUILT_IN:
            raise ValueError(f"the batch size is for built-in models ({', '.join(BUILT_IN)}); {self.model} has its own")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"the batch size is {self.batch_size}; allowed is 1 or more")
        if self.optimizer not in (None, *OPTIMIZERS):
            raise ValueError(f"the optimizer is {self.optimizer!r}; allowed: {', '.join(OPTIMIZERS)}")
        if self.learning_rate is not None and not 0 < self.learning_rate < float("inf"):
            raise ValueError(f"the learning rate is {self.learning_rate:g}; allowed is any above 0")

    @property
    def num_steps(self) -> int:
        """Optimizer steps of every method."""
        return self.num_turns * self.steps_per_turn

    def resolved(self) -> dict[str, Any]:
        """The settings of the training with the model's own where none were given, as the result states them."""
        built_in = BUILT_IN.get(self.model)
        optimizer = self.optimizer or (built_in.optimizer if built_in else OPTIMIZERS[0])
        own_rate = built_in.learning_rate if built_in and optimizer == built_in.optimizer else None
        return {
            "model": self.model,
            "batch_size": self.batch_size or (built_in.batch_size if built_in else None),
            "optimizer": optimizer,
            "learning_rate": self.learning_rate or own_rate or {"adamw": 1e-3, "sgd": 0.01}[optimizer],
            "seed": self.seed,
            "steps": self.num_steps,
            "steps_per_turn": self.steps_per_turn,
        }

    def to_json(self) -> str:
        """One line that :meth:`from_json` reads back."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Job":
        """The inverse of :meth:`to_json`."""
        settings = json.loads(text)
        settings["methods"] = tuple(Method(**method) for method in settings["methods"])
        return cls(**settings)


def with_compute(methods: tuple[Method, ...]) -> tuple[Method, ...]:
    """The methods and, first, ``compute``, without which no step can be taken apart."""
    compute = Method(spec=COMPUTE)
    return (compute, *(method for method in methods if method != compute))
