"""The steps that an option is made of: what is done, and on which resource."""

from dataclasses import dataclass
from enum import StrEnum


class Compute(StrEnum):
    """What happens to a unit inside one worker."""

    ENCODE = "encode"
    REFINE = "refine"
    """From summed payloads and the gradient itself to the payloads of a second round."""
    DECODE = "decode"


class Routine(StrEnum):
    """The collective routines that carry a unit from worker to worker.

    A *divisible* scheme is a first step that leaves each rank with one part of the unit, and a second step that brings
    the parts together again: reduce-scatter or all-to-all, then all-gather.
    """

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    REDUCE_SCATTER = "reduce_scatter"
    ALLTOALL = "alltoall"

    @property
    def divides(self) -> bool:
        """Whether it is the first step of a divisible scheme."""
        return self in (Routine.REDUCE_SCATTER, Routine.ALLTOALL)

    @property
    def sums(self) -> bool:
        """Whether what it carries is added up on the way, so payloads must be reducible."""
        return self in (Routine.ALLREDUCE, Routine.REDUCE_SCATTER)


class Place(StrEnum):
    """The resource that a task occupies: a processor that computes, or the ranks that communicate."""

    CPU = "cpu"
    GPU = "gpu"
    FLAT = "flat"
    """All ranks together, over the slowest link between them."""


PROCESSORS = frozenset({Place.CPU, Place.GPU})


@dataclass(frozen=True, slots=True)
class Task:
    """One step of an option; written ``encode@cpu`` or ``allgather@flat``.

    Raises:
        ValueError: if a computation is placed on links, or a routine on a processor.
    """

    action: Compute | Routine
    place: Place

    def __post_init__(self) -> None:
        if isinstance(self.action, Compute) != (self.place in PROCESSORS):
            allowed = sorted(PROCESSORS if isinstance(self.action, Compute) else set(Place) - PROCESSORS)
            raise ValueError(f"{self.action} cannot be placed on {self.place}; allowed: {', '.join(allowed)}")

    def __str__(self) -> str:
        return f"{self.action}@{self.place}"

    @classmethod
    def parse(cls, text: str) -> "Task":
        """Read ``action@place``.

        Raises:
            ValueError: naming what is allowed.
        """
        action, _, place = text.strip().partition("@")
        actions: dict[str, Compute | Routine] = {str(a): a for a in (*Compute, *Routine)}
        if action not in actions:
            raise ValueError(f"unknown task {text.strip()!r}; write action@place with action in {', '.join(actions)}")
        if place not in set(Place):
            raise ValueError(f"unknown place in task {text.strip()!r}; allowed: {', '.join(Place)}")
        return cls(actions[action], Place(place))
