"""From DDP's buckets to units: which gradients of a bucket travel together, and how."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from thinwire.exchange.layout import Region, cut
from thinwire.exchange.program import Unit
from thinwire.strategy import Choice

RIDER_NUMEL = 1 << 14
"""Uncompressed gradients of at most so many elements ride in a payload of their bucket, if there is one that can take
them: that costs less than a collective, and they arrive no later. Larger ones are not copied for it."""


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
    sees_whole: Callable[[Choice], bool],
    make_unit: Callable[[Sequence[Region], Choice, Sequence[Region]], Unit],
) -> BucketPlan:
    """Cut large gradients into chunks, and put neighbours that are treated alike into one unit.

    What is compressed as one, a chunk of one gradient, does not depend on the bucket it is in: DDP rebuilds its buckets
    after the first step, and results must not change with them. Only what travels together does.

    A unit is at most a chunk, or two if it is made of whole gradients: a chunk is so small that one can travel while
    the next is encoded, and each collective takes time from backward whatever its size.

    What is compressed as whole gradients (low-rank factors) goes into one unit, and the bucket's small uncompressed
    gradients with it: so a bucket takes as many collectives as without compression (ACP-SGD, arXiv 2306.08881, section
    on tensor fusion).

    Args:
        choices: name and choice of every gradient in the bucket, in its order.
        max_numel: most elements of a chunk.
        packable: whether the bucket's elements survive being packed as float32.
        sees_whole: whether a choice compresses whole gradients.
        make_unit: builds a unit from its regions, their common choice, and regions that ride with them.
    """
    plain: list[int] = []
    groups: list[_Group] = []
    for index, (name, choice) in enumerate(choices):
        if not choice.option.compresses and (not choice.option.divides or not packable):
            plain.append(index)
            continue
        if sees_whole(choice):
            region = Region(name, 0, choice.numel)
            fused = next((group for group in groups if _alike(group.choice, choice)), None)
            if fused is None:
                groups.append(_Group(choice, [region], [index], whole=True, fused=True))
            else:
                fused.add(region, index, whole=True)
            continue
        for region in cut(name, choice.numel, max_numel):
            whole = region.numel == choice.numel
            if groups and _alike(groups[-1].choice, choice) and groups[-1].has_room(region, whole, max_numel):
                groups[-1].add(region, index, whole)
            else:
                groups.append(_Group(choice, [region], [index], whole))
    carrier = next((group for group in groups if group.fused), None)
    if carrier is not None and packable:
        carrier.riders = [index for index in plain if choices[index][1].numel <= RIDER_NUMEL]
        plain = [index for index in plain if index not in carrier.riders]
    units = []
    for group in groups:
        riders = [Region(choices[index][0], 0, choices[index][1].numel) for index in group.riders]
        units.append((make_unit(group.regions, group.choice, riders), [*group.owners, *group.riders]))
    return BucketPlan(units, plain)


@dataclass(slots=True)
class _Group:
    """A unit to be."""

    choice: Choice
    regions: list[Region]
    owners: list[int]
    whole: bool
    """Whether all regions are whole gradients."""
    fused: bool = False
    """Whether it takes all of the bucket that it can."""
    riders: Sequence[int] = field(default_factory=list)

    def has_room(self, region: Region, whole: bool, max_numel: int) -> bool:
        numel = sum(r.numel for r in self.regions) + region.numel
        return numel <= (2 * max_numel if self.whole and whole else max_numel)

    def add(self, region: Region, owner: int, whole: bool) -> None:
        self.regions.append(region)
        self.owners.append(owner)
        self.whole &= whole


def _alike(a: Choice, b: Choice) -> bool:
    return a.option == b.option and a.compressor == b.compressor
