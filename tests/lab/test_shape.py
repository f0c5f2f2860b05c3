import pytest

from thinwire.lab import LinkShape


def test_parse_reads_units() -> None:
    shape = LinkShape.parse(rate="2.5gbit", delay="100us", loss="0.1%")
    assert shape == LinkShape(rate_bits_per_second=2_500_000_000, delay_us=100.0, loss_percent=0.1)
    assert LinkShape.parse(rate=" 200 Mbit ").rate_bits_per_second == 200_000_000
    assert LinkShape.parse(delay="1.5ms").delay_us == 1500.0
    assert LinkShape.parse() == LinkShape()


@pytest.mark.parametrize(
    ("setting", "text", "allowed"),
    [
        ("rate", "200", "mbit"),
        ("rate", "200mbps", "mbit"),
        ("rate", "-1mbit", "mbit"),
        ("rate", "fast", "mbit"),
        ("rate", "", "mbit"),
        ("rate", "0mbit", "1kbit or more"),
        ("rate", "nanmbit", "mbit"),
        ("delay", "100", "us, ms, s"),
        ("delay", "-1ms", "us, ms, s"),
        ("loss", "0.1", "%"),
        ("loss", "100%", "below 100%"),
    ],
)
def test_parse_errors_name_setting_and_what_is_allowed(setting: str, text: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=setting) as error:
        LinkShape.parse(**{setting: text})
    assert allowed in str(error.value)


@pytest.mark.parametrize("values", [{"delay_us": -1.0}, {"delay_us": float("nan")}, {"loss_percent": float("nan")}])
def test_numbers_are_checked_too(values: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="allowed"):
        LinkShape(**values)


def test_without_a_shape_nothing_is_shaped() -> None:
    shape = LinkShape(delay_us=0.0, loss_percent=0.0)
    assert shape.sender_commands("wire0") == []
    assert shape.rate_commands("port0") == []
    assert LinkShape().sender_commands("wire0") == []


@pytest.mark.parametrize("rate", ["1kbit", "1mbit", "200mbit", "1gbit", "10gbit", "100gbit"])
def test_a_packet_fits_the_burst_and_the_burst_is_short(rate: str) -> None:
    shape = LinkShape.parse(rate=rate)
    (command,) = shape.rate_commands("wire0")
    words = command.split()
    burst_bytes = int(words[words.index("burst") + 1])
    limit_bytes = int(words[words.index("limit") + 1])
    assert shape.gso_max_bytes <= burst_bytes
    assert burst_bytes <= max(32 * 1024, shape.rate_bits_per_second / 8 * 0.001)
    assert limit_bytes >= burst_bytes


def test_delay_and_loss_come_before_the_rate() -> None:
    netem, tbf = LinkShape.parse(rate="200mbit", delay="0.5ms", loss="0.1%").sender_commands("wire0")
    assert netem == "tc qdisc add dev wire0 root handle 1: netem limit 100000 delay 500us loss 0.1%"
    assert tbf.startswith("tc qdisc add dev wire0 parent 1:1 tbf rate 200000000bit ")
