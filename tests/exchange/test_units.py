"""What travels together, how it is cut, where payloads lie, and every option as a program."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

import thinwire
from tests.exchange.training import Given, batch, mean_over_ranks
from tests.ranks import on_ranks
from thinwire import comm
from thinwire.compress import PAYLOAD_ALIGNMENT_BYTES, parse
from thinwire.exchange.buckets import plan_bucket
from thinwire.exchange.layout import Region, cut, split
from thinwire.exchange.memory import ErrorMemory
from thinwire.exchange.program import Decode, Encode, StepContext, Transfer, Unit, error_stages
from thinwire.strategy import UNCOMPRESSED, Choice, Option, Strategy

laws = settings(max_examples=200, deadline=None, derandomize=True)

TOPK = ("encode@cpu > allgather@flat > decode@cpu", "topk(ratio=0.5)")
ONEBIT = ("encode@cpu > allgather@flat > decode@cpu", "onebit")
TWO_WAY = ("encode@cpu > alltoall@flat > decode@cpu > encode@cpu > allgather@flat > decode@cpu", "topk(ratio=0.5)")
PARTED = ("reduce_scatter@flat > allgather@flat", "none")
PLAIN = (str(UNCOMPRESSED), "none")


def assert_covers(parts: list[Region], start: int, stop: int) -> None:
    assert all(a.stop == b.start for a, b in pairwise(parts))
    assert (parts[0].start, parts[-1].stop) == (start, stop)
    sizes = [part.numel for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


@laws
@given(numel=st.integers(1, 5_000_000_000), max_numel=st.integers(1, 1 << 22))
def test_cut_covers_with_the_fewest_regions_of_nearly_equal_size(numel, max_numel):
    max_numel = max(max_numel, numel // 1000)
    regions = cut("w", numel, max_numel)
    assert_covers(regions, 0, numel)
    assert len(regions) == -(-numel // max_numel)
    assert regions[0].numel <= max_numel


def test_cut_of_nothing_is_nothing():
    assert cut("w", 0, 8) == []


@laws
@given(start=st.integers(0, 10_000_000_000), numel=st.integers(0, 10_000), num_parts=st.integers(1, 64))
def test_split_covers_in_order(start, numel, num_parts):
    parts = split(Region("w", start, start + numel), num_parts)
    assert len(parts) == num_parts
    assert_covers(parts, start, start + numel)


def test_c19_three_billion_elements_are_cut_exactly():
    regions = cut("w", 3_000_000_000, 1 << 20)
    assert_covers(regions, 0, 3_000_000_000)
    assert sum(parse("fp16").payload_nbytes(r.numel) for r in regions) == 6_000_000_000
    assert str(regions[-1]) == "w[2998951782:3000000000]"


def plan(gradients, max_numel=100, packable=True):
    """Regions, choice and owners of every unit, and the gradients that stay plain."""
    choices = [
        (f"w{i}", Choice(numel=numel, option=Option.parse(option), compressor=compressor))
        for i, (numel, (option, compressor)) in enumerate(gradients)
    ]
    made = plan_bucket(
        choices, max_numel, packable, lambda _: False, lambda regions, choice, riders: (regions, choice, riders)
    )
    return [(regions, choice, owners) for (regions, choice, _), owners in made.units], list(made.plain)


def test_neighbours_alike_are_fused_up_to_the_limit():
    units, plain = plan([(40, TOPK), (60, TOPK), (100, TOPK), (1, TOPK), (30, ONEBIT), (30, TOPK)])
    assert [owners for _, _, owners in units] == [[0, 1, 2], [3], [4], [5]]
    assert plain == []


def test_large_gradients_are_cut_and_their_ends_fused():
    units, _ = plan([(250, TOPK), (10, TOPK)])
    assert [[str(r) for r in regions] for regions, _, _ in units] == [
        ["w0[0:84]"],
        ["w0[84:167]"],
        ["w0[167:250]", "w1[0:10]"],
    ]


def test_chunks_travel_alone():
    units, _ = plan([(30, TOPK), (120, TOPK), (30, TOPK), (90, TOPK)])
    assert [[str(r) for r in regions] for regions, _, _ in units] == [
        ["w0[0:30]", "w1[0:60]"],
        ["w1[60:120]", "w2[0:30]"],
        ["w3[0:90]"],
    ]


def test_what_is_uncompressed_is_plain_unless_it_is_divided_and_can_be_packed():
    gradients = [(40, PLAIN), (50, PARTED), (60, PLAIN), (0, TOPK)]
    units, plain = plan(gradients)
    assert [owners for _, _, owners in units] == [[1]]
    assert plain == [0, 2]
    assert plan(gradients, packable=False) == ([], [0, 1, 2])


gradient_lists = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from([TOPK, ONEBIT, TWO_WAY, PARTED, PLAIN])), max_size=12
)


@laws
@given(gradients=gradient_lists, max_numel=st.integers(1, 150), packable=st.booleans())
def test_every_element_is_in_one_unit_or_plain(gradients, max_numel, packable):
    units, plain = plan(gradients, max_numel, packable)
    found = {index: [] for index in range(len(gradients))}
    for regions, choice, owners in units:
        whole = all(r.numel == gradients[owner][0] for r, owner in zip(regions, owners, strict=True))
        assert sum(r.numel for r in regions) <= (2 * max_numel if whole else max_numel)
        for region, owner in zip(regions, owners, strict=True):
            assert region.name == f"w{owner}"
            assert (str(choice.option), choice.compressor) == gradients[owner][1]
            found[owner].append(region)
    for index, (numel, _) in enumerate(gradients):
        # What is compressed as one does not depend on the neighbours.
        assert found[index] == ([] if index in plain else cut(f"w{index}", numel, max_numel))


@laws
@given(gradients=gradient_lists, max_numel=st.integers(20, 150))
def test_cutting_does_not_depend_on_the_bucket(gradients, max_numel):
    together = {r for regions, _, _ in plan(gradients, max_numel)[0] for r in regions}
    for index, gradient in enumerate(gradients):
        bucket = [(0, PLAIN)] * index + [gradient]
        assert {r for regions, _, _ in plan(bucket, max_numel)[0] for r in regions} <= together


OPTIONS = [
    ("encode@cpu > allreduce@flat > decode@cpu", "fp16"),
    ("encode@cpu > allgather@flat > decode@cpu", "fp16"),
    ("encode@cpu > reduce_scatter@flat > allgather@flat > decode@cpu", "fp16"),
    ("encode@cpu > alltoall@flat > decode@cpu > encode@cpu > allgather@flat > decode@cpu", "int8"),
    ("encode@cpu > alltoall@flat > allgather@flat > decode@cpu", "fp16"),
    ("encode@cpu > alltoall@flat > decode@cpu > allgather@flat", "fp16"),
    ("reduce_scatter@flat > allgather@flat", "none"),
    ("reduce_scatter@flat > encode@cpu > allgather@flat > decode@cpu", "fp16"),
    ("allreduce@flat", "none"),
]
SIZES = (1000, 3, 64, 17)


def run(rank, option, spec):
    """Three steps of one unit, made of slices of larger gradients; returns the errors of each step."""
    option, compressor = Option.parse(option), parse(spec)
    group, device = dist.group.WORLD, torch.device("cpu")
    memory = ErrorMemory(device)
    regions = [Region(f"w{i}", 10 * i, 10 * i + numel) for i, numel in enumerate(SIZES)]
    groups = comm.like(group, len(option.routines), device)
    unit = Unit(regions, option, compressor, groups, rank, memory)
    assert_laid_out(unit)
    pending = {r.name: torch.zeros(r.numel, dtype=torch.float64) for r in regions}
    for step in range(3):
        gradients = {r.name: batch(rank, 10 * step + i, r.numel) for i, r in enumerate(regions)}
        mean = mean_over_ranks(gradients)
        unit.values.hold(list(gradients.values()))
        context = StepContext(seed=0, step=step, rank=rank, error_unit=lambda _: 1.0)
        program = unit.program(step)
        for task in program.steps:
            if isinstance(task, Transfer):
                task.start().wait()
                task.finish()
            else:
                task.run(context)
        assert program.steps[-1].is_finite()
        memory.commit()
        left = {r.name: torch.zeros(r.numel, dtype=torch.float64) for r in regions}
        for saved in memory.save():
            share = 1 / group.size() if saved.stage == 0 else 1.0
            start = saved.region.start - 10 * int(saved.region.name[1:])
            left[saved.region.name][start : start + saved.region.numel] += share * saved.error.double()
        for r in regions:
            dist.all_reduce(left[r.name])
            result, entered = gradients[r.name].double(), mean[r.name] + pending[r.name]
            slack = 2e-3 if option.sums_payloads else 1e-6  # sums of fp16 payloads are rounded
            torch.testing.assert_close(result + left[r.name], entered, rtol=slack, atol=slack)
            torch.testing.assert_close(result, mean[r.name], rtol=0.05, atol=0.05)
        pending = left


def assert_laid_out(unit):
    """Payloads begin at multiples of the alignment, and no two of a row overlap."""
    for task in unit.program(0).steps:
        if isinstance(task, Encode | Decode):
            spans = sorted(
                (p.data_ptr(), p.data_ptr() + p.numel()) for item in task.items for p in item.payloads if p.numel()
            )
            assert all(start % PAYLOAD_ALIGNMENT_BYTES == 0 for start, _ in spans)
            assert all(a[1] <= b[0] for a, b in pairwise(spans))


def every_option(rank):
    for option, spec in OPTIONS:
        run(rank, option, spec)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_every_option_gives_the_mean_and_loses_nothing(num_ranks):
    on_ranks(num_ranks, every_option)


def resumed(rank, option):
    choice = Choice(numel=1200, option=Option.parse(option), compressor="onebit")
    strategy = Strategy(world_size=2, gradients={"weights.0": choice})

    def attach() -> tuple[DistributedDataParallel, thinwire.Sync]:
        ddp = DistributedDataParallel(Given(torch.zeros(40, 30)))
        return ddp, thinwire.attach(ddp, strategy=strategy, chunk_bytes=2000)

    def exchange(ddp: DistributedDataParallel, step: int) -> torch.Tensor:
        ddp.zero_grad()
        ddp(batch(rank, step, 40, 30)).backward()
        return ddp.module.weights[0].grad

    ddp, sync = attach()
    for step in range(2):
        exchange(ddp, step)
    saved = sync.state_dict()
    assert {e["stage"] for e in saved["errors"]} == error_stages(choice.option)
    other, again = attach()
    again.load_state_dict(saved)
    assert torch.equal(exchange(other, 2), exchange(ddp, 2))


@pytest.mark.parametrize(
    "option", [o for o, _ in OPTIONS if Option.parse(o).compresses and not Option.parse(o).sums_payloads]
)
def test_every_option_resumes_with_the_same_bits(option):
    on_ranks(2, resumed, option)
