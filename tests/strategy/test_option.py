import pytest

from thinwire.strategy import SCHEMES, UNCOMPRESSED, Option, Place, choose_scheme, flat_option


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("processor", [Place.CPU, Place.GPU])
def test_options_are_read_back_as_they_are_written(scheme: str, processor: Place) -> None:
    option = flat_option(scheme, processor)
    assert Option.parse(str(option)) == option
    assert hash(Option.parse(str(option))) == hash(option)
    assert option.compresses


def test_two_way_option_reads_as_it_runs() -> None:
    assert str(flat_option("alltoall", Place.CPU)) == (
        "encode@cpu > alltoall@flat > decode@cpu > encode@cpu > allgather@flat > decode@cpu"
    )


def test_facts_about_options() -> None:
    assert not UNCOMPRESSED.compresses
    assert not UNCOMPRESSED.divides
    assert not UNCOMPRESSED.sums_payloads
    assert flat_option("allreduce", Place.CPU).sums_payloads
    assert flat_option("reduce_scatter", Place.CPU).sums_payloads
    assert flat_option("allreduce_twice", Place.CPU).sums_payloads
    assert flat_option("allreduce_twice", Place.CPU).refines
    assert not flat_option("allreduce", Place.CPU).refines
    assert not flat_option("alltoall", Place.CPU).sums_payloads
    assert flat_option("alltoall", Place.CPU).divides
    assert str(flat_option("reduce_scatter", Place.CPU, compressed=False)) == "reduce_scatter@flat > allgather@flat"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allgather@flat", "encode first, or use allreduce"),
        ("encode@cpu > allgather@flat", "decode is missing"),
        ("encode@cpu > decode@cpu", "does not communicate"),
        ("encode@cpu > encode@cpu > allgather@flat > decode@cpu", "encoded already"),
        ("decode@cpu > allreduce@flat", "nothing is encoded"),
        ("refine@cpu > allreduce@flat", "nothing is encoded"),
        ("encode@cpu > refine@cpu > allreduce@flat > decode@cpu", "takes the sum of a first round"),
        ("encode@cpu > alltoall@flat > refine@cpu > allgather@flat > decode@cpu", "takes the sum of a first round"),
        ("alltoall@flat > allgather@flat", "encode first, or use reduce_scatter"),
        ("reduce_scatter@flat", "allgather of its parts is missing"),
        ("allreduce@flat > encode@cpu > allgather@flat > decode@cpu", "added up already"),
        ("encode@cpu > allgather@flat > decode@cpu > allreduce@flat", "added up already"),
        ("reduce_scatter@flat > allgather@flat > allreduce@flat", "added up already"),
        ("encode@flat > allreduce@flat > decode@cpu", "allowed: cpu, gpu"),
        ("allreduce@cpu", "allowed: flat"),
        ("allreduce@moon", "allowed: cpu, gpu, flat"),
        ("teleport@flat", "encode, refine, decode, allreduce"),
        ("", "unknown task"),
    ],
)
def test_what_does_not_fit_together_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Option.parse(text)


def test_unknown_scheme_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="allreduce, allreduce_twice, allgather, alltoall, reduce_scatter"):
        flat_option("ring", Place.CPU)


@pytest.mark.parametrize(
    ("reducible", "payload", "world_size", "scheme"),
    [
        (True, 2.0, 64, "allreduce"),
        (False, 1 / 8, 2, "allgather"),
        (False, 1 / 8, 8, "allgather"),
        (False, 1 / 8, 9, "alltoall"),
        (False, 1.0, 2, "allgather"),
        (False, 1.0, 3, "alltoall"),
        (False, 0.06, 16, "allgather"),
    ],
)
def test_scheme_follows_from_the_payload(reducible: bool, payload: float, world_size: int, scheme: str) -> None:
    chosen = choose_scheme(reducible=reducible, payload_bytes_per_element=payload, world_size=world_size)
    assert chosen == scheme
