"""Which consecutive elements of a gradient belong together, and where their payloads lie in a buffer."""

from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from thinwire.compress import Codec


@dataclass(frozen=True, slots=True)
class Region:
    """Elements ``start`` to ``stop`` of one gradient, flattened in logical (row-major) order."""

    name: str
    start: int
    stop: int

    @property
    def numel(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"{self.name}[{self.start}:{self.stop}]"


def cut(name: str, numel: int, max_numel: int) -> list[Region]:
    """A gradient as the fewest regions of at most ``max_numel`` elements, of sizes that differ by one at most."""
    return split(Region(name, 0, numel), -(-numel // max_numel))


def split(region: Region, num_parts: int) -> list[Region]:
    """A region as ``num_parts`` consecutive ones whose sizes differ by one at most, larger ones first."""
    base, larger = divmod(region.numel, num_parts) if num_parts else (0, 0)
    bounds = [region.start + i * base + min(i, larger) for i in range(num_parts + 1)]
    return [Region(region.name, a, b) for a, b in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class Cell:
    """Where the payloads of one region lie in a ``[num_rows, row_nbytes]`` buffer.

    Several rows hold one each if several ranks' payloads of the region are still to be added up.
    """

    codec: Codec
    holder: int
    """Number of the unit's gradient region that ``region`` is, or is a part of."""
    region: Region
    rows: range
    offset: int
    nbytes: int

    def payloads(self, buffer: Tensor) -> Tensor:
        """The payloads as ``[len(rows), nbytes]``, a view."""
        return buffer[self.rows.start : self.rows.stop : self.rows.step, self.offset : self.offset + self.nbytes]
