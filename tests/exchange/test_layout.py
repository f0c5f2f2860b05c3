import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.compress import Identity
from thinwire.exchange.layout import Cell, Region, cut, split

sizes = st.integers(0, 10_000)


def assert_consecutive(regions: list[Region], start: int, stop: int) -> None:
    assert [r.start for r in regions] == [start, *(r.stop for r in regions[:-1])]
    assert regions[-1].stop == stop
    assert max(r.numel for r in regions) - min(r.numel for r in regions) <= 1
    assert [r.numel for r in regions] == sorted((r.numel for r in regions), reverse=True)


@given(numel=st.integers(1, 10_000), max_numel=st.integers(1, 3000))
def test_cut_makes_the_fewest_even_chunks(numel, max_numel):
    chunks = cut("w", numel, max_numel)
    assert_consecutive(chunks, 0, numel)
    assert max(c.numel for c in chunks) <= max_numel
    assert (len(chunks) - 1) * max_numel < numel


@given(start=sizes, numel=sizes, num_parts=st.integers(1, 50))
def test_split_makes_exactly_so_many_parts(start, numel, num_parts):
    parts = split(Region("w", start, start + numel), num_parts)
    assert len(parts) == num_parts
    assert_consecutive(parts, start, start + numel)


def test_nothing_is_cut_into_nothing():
    assert cut("w", 0, 8) == []
    assert cut("w", 8, 8) == [Region("w", 0, 8)]
    assert [str(c) for c in cut("layer.w", 9, 8)] == ["layer.w[0:5]", "layer.w[5:9]"]


@pytest.mark.parametrize("rows", [range(1), range(1, 3), range(0, 4, 2)])
def test_a_cell_is_a_view_of_its_rows(rows):
    buffer = torch.arange(4 * 32, dtype=torch.uint8).view(4, 32)
    payloads = Cell(Identity(), 0, Region("w", 0, 5), rows, 16, 5).payloads(buffer)
    assert payloads.tolist() == [buffer[row, 16:21].tolist() for row in rows]
    payloads.zero_()
    assert buffer[list(rows), 16:21].sum() == 0
