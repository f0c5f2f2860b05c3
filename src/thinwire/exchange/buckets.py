"""From DDP's buckets to units: which gradients of a bucket travel together, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thinwire.exchange.layout import Region, cut
from thinwire.exchange.program import Unit
from thinwire.strategy import Choice


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """How one bucket is exchanged."""

    units: Sequence[tuple[Unit, Sequence[int]]]
    """Each unit, with the bucket's gradient that each of its regions belongs to."""
    plain: Sequence[int]
    """The bucket's gradients that go through one plain all-reduce together."""


def plan_bucket(
    choices: Sequence[tuple[str, Choice]],
    max_numel: int,
    packable: bool,
    make_unit: Callable[[Sequence[Region], Choice], Unit],
) -> BucketPlan:
    """Cut large gradients into chunks, and put neighbours that are treated alike into one unit.

    What is compressed as one, a chunk of one gradient, does not depend on the bucket it is in: DDP rebuilds its buckets
    after the first step, and results must not change with them. Only what travels together does.

    A unit is at most a chunk, or two if it is made of whole gradients: a chunk is so small that one can travel while
    the next is encoded, and each collective takes time from backward whatever its size.

    Args:
        choices: name and choice of every gradient in the bucket, in its order.
        max_numel: most elements of a chunk.
        packable: whether the bucket's elements survive being packed as float32.
        make_unit: builds a unit from its regions and their common choice.
    """
    plain: list[int] = []
    groups: list[_Group] = []
    for index, (name, choice) in enumerate(choices):
        if not choice.option.compresses and (not choice.option.divides or not packable):
            plain.append(index)
            continue
        for region in cut(name, choice.numel, max_numel):
            whole = region.numel == choice.numel
            if groups and _alike(groups[-1].choice, choice) and groups[-1].has_room(region, whole, max_numel):
                groups[-1].add(region, index, whole)
            else:
                groups.append(_Group(choice, [region], [index], whole))
    return BucketPlan([(make_unit(group.regions, group.choice), group.owners) for group in groups], plain)


@dataclass(slots=True)
class _Group:
    """A unit to be."""

    choice: Choice
    regions: list[Region]
    owners: list[int]
    whole: bool
    """Whether all regions are whole gradients."""

    def has_room(self, region: Region, whole: bool, max_numel: int) -> bool:
        numel = sum(r.numel for r in self.regions) + region.numel
        return numel <= (2 * max_numel if self.whole and whole else max_numel)

    def add(self, region: Region, owner: int, whole: bool) -> None:
        self.regions.append(region)
        self.owners.append(owner)
        self.whole &= whole


def _alike(a: Choice, b: Choice) -> bool:
    return a.option == b.option and a.compressor == b.compressor
