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

    Args:
        choices: name and choice of every gradient in the bucket, in its order.
        max_numel: most elements of a chunk, and of a unit.
        packable: whether the bucket's elements survive being packed as float32.
        make_unit: builds a unit from its regions and their common choice.
    """
    plain: list[int] = []
    groups: list[tuple[Choice, list[Region], list[int]]] = []
    for index, (name, choice) in enumerate(choices):
        if not choice.option.compresses and (not choice.option.divides or not packable):
            plain.append(index)
            continue
        for region in cut(name, choice.numel, max_numel):
            if groups and _alike(groups[-1][0], choice) and _total(groups[-1][1]) + region.numel <= max_numel:
                groups[-1][1].append(region)
                groups[-1][2].append(index)
            else:
                groups.append((choice, [region], [index]))
    return BucketPlan([(make_unit(regions, choice), owners) for choice, regions, owners in groups], plain)


def _alike(a: Choice, b: Choice) -> bool:
    return a.option == b.option and a.compressor == b.compressor


def _total(regions: Sequence[Region]) -> int:
    return sum(r.numel for r in regions)
