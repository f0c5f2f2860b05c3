"""The error memories of a whole model on one rank, by parameter name, and how they survive a restart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thinwire.compress import ErrorFeedback
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


class ErrorMemory:
    """Error feedback for every region that this rank encodes, made when first asked for.

    Regions may be cut differently after a restart (another chunk size): saved errors are kept by name and place, and a
    new region picks up whatever overlaps it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._entries: dict[tuple[Region, int], ErrorFeedback] = {}
        self._saved: list[SavedError] = []  # restored, but not asked for yet

    def of(self, region: Region, stage: int) -> ErrorFeedback:
        """The error feedback of a region at a stage."""
        if (entry := self._entries.get((region, stage))) is None:
            entry = self._entries[region, stage] = ErrorFeedback(region.numel, self.device)
            self._restore(region, stage, entry)
        return entry

    def commit(self) -> None:
        """Keep this step's errors."""
        for entry in self._entries.values():
            entry.commit()

    def rollback(self) -> None:
        """Forget this step's errors; those of the step before stay."""
        for entry in self._entries.values():
            entry.rollback()

    def save(self) -> list[SavedError]:
        """Copies of all committed errors, with those restored but not yet asked for."""
        live = [SavedError(r, s, e.error, e.unit) for (r, s), e in self._entries.items()]
        return [replace(s, error=s.error.clone()) for s in live + self._saved]

    def load(self, saved: Sequence[SavedError]) -> None:
        """Replace all errors by saved ones; where nothing was saved they become zero."""
        self._saved = list(saved)
        for (region, stage), entry in self._entries.items():
            self._restore(region, stage, entry)

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
