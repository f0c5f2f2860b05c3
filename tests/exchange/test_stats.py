import re
import threading
import time
from pathlib import Path

import pytest

from tests.exchange.given import CHUNK_BYTES, SHAPES, attach, exchanged, given_ddp, given_gradients
from tests.exchange.test_schemes import COMPRESSED, SCHEMES, cut
from tests.ranks import on_ranks
from thinwire.compress import parse
from thinwire.exchange import Figures, Stats

ALIGNMENT_BYTES = 16


def numel(name: str) -> int:
    size = 1
    for length in SHAPES[name]:
        size *= length
    return size


def aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def expected_bytes(spec: str, scheme: str, n: int) -> float:
    """What each rank sends in one step: payloads by the scheme's formula, and 2(n-1)/n of what is left uncompressed."""
    compressor = parse(spec)
    total = sum(2 * (n - 1) / n * 4 * numel(name) for name in SHAPES if name not in COMPRESSED)
    for name in COMPRESSED:
        for start, stop in cut(0, numel(name), -(-4 * numel(name) // CHUNK_BYTES)):
            whole = aligned(compressor.payload_nbytes(stop - start))
            part = aligned(compressor.payload_nbytes(-(-(stop - start) // n)))
            total += {
                "allreduce": 2 * (n - 1) / n * whole,
                "allgather": (n - 1) * whole,
                "alltoall": 2 * (n - 1) * part,
                "reduce_scatter": 2 * (n - 1) * part,
            }[scheme]
    return total


def three_steps(rank: int, spec: str, scheme: str) -> tuple[Stats, Stats, str, str]:
    ddp = given_ddp()
    sync = attach(ddp, spec, scheme=scheme)
    fresh = repr(sync)
    for step in range(3):
        exchanged(ddp, given_gradients(rank, step))
    counted = sync.stats()
    sync.reset_stats()
    exchanged(ddp, given_gradients(rank, 3))
    sync.detach()
    return counted, sync.stats(), fresh, repr(sync)


@pytest.mark.parametrize("num_ranks", [2, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bytes_are_those_of_the_formula(scheme, num_ranks):
    spec = "randomk(ratio=0.1)" if scheme in ("allreduce", "reduce_scatter") else "onebit"
    uncompressed = 2 * (num_ranks - 1) / num_ranks * 4 * sum(map(numel, SHAPES))
    expected = expected_bytes(spec, scheme, num_ranks)
    rounding = 32  # each all-reduce's bytes are rounded to whole ones
    for counted, after_reset, _, _ in on_ranks(num_ranks, three_steps, spec, scheme):
        assert (counted.steps, after_reset.steps) == (3, 1)
        for last in (counted.last, counted.mean, after_reset.total):
            assert abs(last.payload_bytes - expected) < rounding
            assert abs(last.uncompressed_bytes - uncompressed) < rounding
            assert last.compression_ratio == pytest.approx(uncompressed / expected, rel=0.02)
        assert counted.total.payload_bytes == 3 * counted.last.payload_bytes
        assert min(counted.last.encode_seconds, counted.last.decode_seconds, counted.last.wait_seconds) > 0
        assert counted.non_finite_steps == 0


def test_repr_says_what_is_done():
    for _, _, fresh, later in on_ranks(2, three_steps, "onebit", "allgather"):
        numels = sum(map(numel, COMPRESSED)), sum(map(numel, SHAPES))
        assert re.fullmatch(
            r"<thinwire.Sync onebit by encode@cpu > allgather@flat > decode@cpu; 5 of 8 gradients, "
            rf"{numels[0]:,} of {numels[1]:,} elements; 2 ranks; step 0>",
            fresh,
        )
        assert later == fresh.replace("step 0", "step 4; detached")


def test_nothing_sent_is_no_ratio():
    assert Figures().compression_ratio == 1.0
    assert Stats().mean == Figures()


def threads_left_by_attaching(rank: int) -> int:
    ddp = given_ddp()

    def num_threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))  # with those of process groups

    def attach_once() -> None:
        sync = attach(ddp, "onebit", scheme="alltoall")
        exchanged(ddp, given_gradients(rank, 0))
        sync.detach()

    attach_once()
    deadline = time.monotonic() + 10
    while any(t.name.startswith("thinwire") for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    before = num_threads()
    for _ in range(5):
        attach_once()
    while num_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return num_threads() - before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in Linux's /proc")
def test_attaching_again_and_again_leaves_no_threads():
    assert max(on_ranks(2, threads_left_by_attaching)) <= 0
