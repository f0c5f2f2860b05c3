"""What one rank remembers of a whole model, by parameter name, and how it survives a restart."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True)
class SavedState:
    """A method's state of a region, as kept after some step."""

    region: Region
    tensors: Mapping[str, Tensor]


class ErrorMemory:
    """Error feedback for every region that this rank encodes, and methods' states; made when first asked for.

    Regions may be cut differently after a restart (another chunk size): saved errors are kept by name and place, and a
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
        self._saved_states: dict[Region, SavedState] = {}  # restored, but not asked for yet
        self._entries: dict[tuple[Region, int], ErrorFeedback] = {}
        self._saved: list[SavedError] = []  # restored, but not asked for yet

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
            if state is not None and (saved := self._saved_states.pop(region, None)) is not None:
                state.load(saved.tensors)
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
        live = [SavedState(region, state.save()) for region, state in self._states.items() if state is not None]
        return [
            SavedState(s.region, {name: tensor.clone() for name, tensor in s.tensors.items()})
            for s in [*live, *self._saved_states.values()]
        ]

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
                    "compressor and the chunk_bytes it was saved with, or start without it"
                )

    def load(self, saved: Sequence[SavedError], states: Sequence[SavedState] = ()) -> None:
        """Replace all errors and states by saved ones; where nothing was saved they become what they were at first."""
        self._saved = list(saved)
        for (region, stage), entry in self._entries.items():
            self._restore(region, stage, entry)
        self._saved_states = {s.region: s for s in states}
        for region, state in self._states.items():
            if state is not None:
                restored = self._saved_states.pop(region, None)
                state.load((restored or SavedState(region, self._first(region))).tensors)

    def _first(self, region: Region) -> Mapping[str, Tensor]:
        state = self._new_state(region)
        assert state is not None
        return state.save()

    def _restore(self, region: Region, stage: int, entry: ErrorFeedback) -> None:
        """Move what was saved of the region into its entry."""
        found: list[SavedError] = []
        kept: list[SavedError] = []
        for s in self._saved:
            if s.stage != stage or s.region.name != region.name:
                kept.append(s)
                continue
            kept += _slices(s, s.region.start, region.start) + _slices(s, region.stop, s.region.stop)
            found += _slices(s, region.start, region.stop)
        self._saved = kept
        unit = found[0].unit if found else 1.0
        error = torch.zeros(region.numel, device=self.device)
        for s in found:
            start, stop = s.region.start - region.start, s.region.stop - region.start
            error[start:stop] = s.error.to(self.device) * (unit / s.unit)
        entry.load(error, unit)


def _slices(saved: SavedError, start: int, stop: int) -> list[SavedError]:
    """What of a saved error lies from ``start`` to ``stop``: one part, a view, or none."""
    start, stop = max(start, saved.region.start), min(stop, saved.region.stop)
    if start >= stop:
        return []
    error = saved.error[start - saved.region.start : stop - saved.region.start]
    return [replace(saved, region=Region(saved.region.name, start, stop), error=error)]


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
            {name: torch.stack([s.tensors[name].cpu() for s in same_region]).mean(0) for name in first.tensors},
        )
