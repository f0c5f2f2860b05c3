"""What one rank remembers of a whole model, by parameter name, and how it survives a restart."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

from thinwire.compress import ErrorFeedback, State
from thinwire.exchange.layout import Region

WORKER = 0
"""The stage of what a worker drops from its own gradient; higher stages compress what was summed (servers)."""


@dataclass(frozen=True, slots=True)
class SavedError:
    """One committed error: the region and stage it belongs to, and the unit it is stored in."""

    region: Region
    stage: int
    error: Tensor
    unit: float

    def part(self, region: Region) -> Self:
        """What lies in ``region``, which is part of this one; a view."""
        start, stop = region.start - self.region.start, region.stop - self.region.start
        return replace(self, region=region, error=self.error[start:stop])


@dataclass(frozen=True, slots=True)
class SavedState:
    """A method's state of a region, as kept after some step, and the unit of the region's error then.

    Unless the region is a whole gradient, the tensors have an element for each of the region's.
    """

    region: Region
    tensors: Mapping[str, Tensor]
    unit: float = 1.0

    def part(self, region: Region) -> Self:
        """What lies in ``region``, which is part of this one; views."""
        if region == self.region:
            return self
        start, stop = region.start - self.region.start, region.stop - self.region.start
        return replace(self, region=region, tensors={name: t[start:stop] for name, t in self.tensors.items()})


_Saved = TypeVar("_Saved", SavedError, SavedState)


class ErrorMemory:
    """Error feedback for every region that this rank encodes, and methods' states; made when first asked for.

    Regions may be cut differently after a restart (another chunk size): what was saved is kept by name and place, and a
    new region picks up whatever overlaps it.
    """

    def __init__(self, device: torch.device, new_state: Callable[[Region], State | None] = lambda _: None) -> None:
        """Start with nothing.

        Args:
            device: of the errors.
            new_state: makes the state that the region's method starts with.
        """
        self.device = device
        self._new_state = new_state
        self._states: dict[Region, State | None] = {}
        self._entries: dict[tuple[Region, int], ErrorFeedback] = {}
        # Restored, but not asked for yet:
        self._saved: list[SavedError] = []
        self._saved_states: list[SavedState] = []

    def of(self, region: Region, stage: int) -> ErrorFeedback:
        """The error feedback of a region at a stage."""
        if (entry := self._entries.get((region, stage))) is None:
            entry = self._entries[region, stage] = ErrorFeedback(region.numel, self.device)
            self._restore(region, stage, entry)
        return entry

    def state(self, region: Region) -> State | None:
        """What the region's method remembers of it; None: nothing."""
        if region not in self._states:
            state = self._states[region] = self._new_state(region)
            if state is not None:
                self._restore_state(region, state)
        return self._states[region]

    def commit(self) -> None:
        """Keep this step's errors and states."""
        for kept in self._kept():
            kept.commit()

    def rollback(self) -> None:
        """Forget this step's errors and states; those of the step before stay."""
        for kept in self._kept():
            kept.rollback()

    def _kept(self) -> Iterator[ErrorFeedback | State]:
        yield from self._entries.values()
        yield from filter(None, self._states.values())

    def save(self) -> list[SavedError]:
        """Copies of all committed errors, with those restored but not yet asked for."""
        live = [SavedError(r, s, e.error, e.unit) for (r, s), e in self._entries.items()]
        return [replace(s, error=s.error.clone()) for s in live + self._saved]

    def save_states(self) -> list[SavedState]:
        """Copies of all states, with those restored but not yet asked for."""
        live = [SavedState(r, state.save(), self._unit(r)) for r, state in self._states.items() if state is not None]
        return [
            replace(s, tensors={name: tensor.clone() for name, tensor in s.tensors.items()})
            for s in live + self._saved_states
        ]

    def _unit(self, region: Region) -> float:
        entry = self._entries.get((region, WORKER))
        return 1.0 if entry is None else entry.unit

    def check_states(self, saved: Sequence[SavedState]) -> None:
        """Refuse states that this model's methods would not start from.

        Raises:
            ValueError: naming the parameter.
        """
        for s in saved:
            fresh = self._new_state(s.region)
            wanted = {} if fresh is None else {name: tensor.shape for name, tensor in fresh.save().items()}
            if {name: tensor.shape for name, tensor in s.tensors.items()} != wanted:
                raise ValueError(
                    f"the saved state of {s.region} is not one of the compressor that it has now; resume with the "
                    "compressor it was saved with, or start without it"
                )

    def load(self, saved: Sequence[SavedError], states: Sequence[SavedState] = ()) -> None:
        """Replace all errors and states by saved ones; where nothing was saved they become what they were at first."""
        self._saved = list(saved)
        for (region, stage), entry in self._entries.items():
            self._restore(region, stage, entry)
        self._saved_states = list(states)
        for region, state in self._states.items():
            if state is not None:
                self._restore_state(region, state)

    def _restore(self, region: Region, stage: int, entry: ErrorFeedback) -> None:
        """Move what was saved of the region's error into its entry."""
        found, kept = _divide([s for s in self._saved if s.stage == stage], region)
        self._saved = [s for s in self._saved if s.stage != stage] + kept
        unit = found[0].unit if found else 1.0
        error = torch.zeros(region.numel, device=self.device)
        for s in found:
            start, stop = s.region.start - region.start, s.region.stop - region.start
            error[start:stop] = s.error.to(self.device) * (unit / s.unit)
        entry.load(error, unit)

    def _restore_state(self, region: Region, state: State) -> None:
        """Move what was saved of the region into its state, in the unit that its error is restored in."""
        found, self._saved_states = _divide(self._saved_states, region)
        if found and found[0].region == region:
            state.load(found[0].tensors)
            return
        first = self._new_state(region)
        assert first is not None
        tensors = {name: tensor.clone() for name, tensor in first.save().items()}
        for s in found:
            start, stop = s.region.start - region.start, s.region.stop - region.start
            for name, tensor in s.tensors.items():
                tensors[name][start:stop] = tensor * (found[0].unit / s.unit)
        state.load(tensors)


def _divide(saved: Sequence[_Saved], region: Region) -> tuple[list[_Saved], list[_Saved]]:
    """What of the saved lies in a region, in order, and the rest; views where something is cut."""
    inside: list[_Saved] = []
    rest: list[_Saved] = []
    for s in saved:
        if s.region.name != region.name:
            rest.append(s)
            continue
        for where, start, stop in (
            (rest, s.region.start, region.start),
            (inside, region.start, region.stop),
            (rest, region.stop, s.region.stop),
        ):
            start, stop = max(start, s.region.start), min(stop, s.region.stop)
            if start < stop:
                where.append(s.part(Region(region.name, start, stop)))
    return sorted(inside, key=lambda s: s.region.start), rest


def fold(ranks: Sequence[Sequence[SavedError]], numels: Mapping[str, int]) -> Iterator[SavedError]:
    """What every rank of another world should start from, so that what will reach the model stays the same.

    Pending is the mean over workers of their errors, plus the servers' errors. Every new worker gets all of it as its
    own error: the mean over the new workers is again the same, however many there are, and servers start from zero.

    Args:
        ranks: the saved errors of every rank of the old world.
        numels: number of elements of each parameter.
    """
    pending: dict[str, Tensor] = {}
    for saved in ranks:
        for s in saved:
            total = pending.setdefault(s.region.name, torch.zeros(numels[s.region.name], dtype=torch.float64))
            share = 1.0 / len(ranks) if s.stage == WORKER else 1.0
            total[s.region.start : s.region.stop].add_(s.error.cpu(), alpha=share / s.unit)
    for name, total in pending.items():
        yield SavedError(Region(name, 0, numels[name]), WORKER, total.float(), 1.0)


def fold_states(ranks: Sequence[Sequence[SavedState]]) -> Iterator[SavedState]:
    """The states that every rank of another world should start from: the mean over the old ranks, the same for all.

    Like the errors of :func:`fold`, in unit 1.

    Raises:
        ValueError: if the ranks' states are not of the same regions.
    """
    by_region = [sorted(states, key=lambda s: str(s.region)) for states in ranks]
    if any([s.region for s in states] != [s.region for s in by_region[0]] for states in by_region):
        raise ValueError("the ranks' states are of different gradients; give those of one save")
    for same_region in zip(*by_region, strict=True):
        first = same_region[0]
        yield SavedState(
            first.region,
            {
                name: torch.stack([s.tensors[name].cpu() / s.unit for s in same_region]).mean(0)
                for name in first.tensors
            },
        )
