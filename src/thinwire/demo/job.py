"""What the workers are asked to do."""

import json
from dataclasses import asdict, dataclass, field

from thinwire.demo.model import ModelSize


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
