"""What a link lets through: its rate, delay and loss, and the queueing disciplines that make it so."""

import re
from dataclasses import dataclass
from typing import Self

_BITS_PER_SECOND = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_MICROSECONDS = {"us": 1.0, "ms": 1e3, "s": 1e6}
_PERCENT = {"%": 1.0}

_MIN_BURST_BYTES = 32 * 1024
_MIN_QUEUE_BYTES = 256 * 1024
_MAX_GSO_BYTES = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkShape:
    """The shape of every link of a lab; None leaves a property as the kernel has it.

    ``rate_bits_per_second`` holds in each direction of each link. ``delay_us`` (microseconds) and ``loss_percent``
    apply once on the way from one worker to another, so a round trip takes twice the delay.

    Raises:
        ValueError: for a rate below 1 kbit/s, a negative delay, or a loss outside [0, 100).
    """

    rate_bits_per_second: int | None = None
    delay_us: float | None = None
    loss_percent: float | None = None

    def __post_init__(self) -> None:
        rate, delay, loss = self.rate_bits_per_second, self.delay_us, self.loss_percent
        if rate is not None and rate < 1000:
            raise ValueError(f"rate is {rate} bit/s; allowed is 1kbit or more")
        if delay is not None and not 0 <= delay < float("inf"):
            raise ValueError(f"delay is {delay} us; allowed is 0 or more")
        if loss is not None and not 0 <= loss < 100:
            raise ValueError(f"loss is {loss} %; allowed is from 0% to below 100%")

    @classmethod
    def parse(cls, *, rate: str | None = None, delay: str | None = None, loss: str | None = None) -> Self:
        """Read a shape as it is written on a command line: ``rate="200mbit"``, ``delay="100us"``, ``loss="0.1%"``.

        Raises:
            ValueError: if a value cannot be read or is out of range; the message says what is allowed.
        """
        bits = _number("rate", rate, _BITS_PER_SECOND, "200mbit, 1gbit, 2.5gbit")
        return cls(
            rate_bits_per_second=None if bits is None else round(bits),
            delay_us=_number("delay", delay, _MICROSECONDS, "100us, 1.5ms"),
            loss_percent=_number("loss", loss, _PERCENT, "0.1%"),
        )

    @property
    def gso_max_bytes(self) -> int:
        """The longest packet that a sender may hand over in one piece, to be cut up by the network card.

        Half of the token bucket's burst: a longer one would have to be cut up in software before it fits.
        """
        return min(_MAX_GSO_BYTES, self._burst_bytes // 2)

    @property
    def _burst_bytes(self) -> int:
        # One millisecond of traffic rides out late timers; more would let short exchanges pass unshaped.
        return _MIN_BURST_BYTES if self.rate_bits_per_second is None else self._bytes_in(0.001, _MIN_BURST_BYTES)

    def _bytes_in(self, seconds: float, at_least: int) -> int:
        return max(at_least, round((self.rate_bits_per_second or 0) / 8 * seconds))

    def rate_commands(self, interface: str, parent: str = "root") -> list[str]:
        """The ``tc`` commands that limit what ``interface`` sends; none without a rate.

        The queue holds 50 ms of traffic, as a switch's port would: enough that several senders to one receiver fill
        it without loss, and little enough that TCP notices.
        """
        if self.rate_bits_per_second is None:
            return []
        limit = self._bytes_in(0.050, _MIN_QUEUE_BYTES)
        return [
            f"tc qdisc add dev {interface} {parent} "
            f"tbf rate {self.rate_bits_per_second}bit burst {self._burst_bytes} limit {limit}"
        ]

    def sender_commands(self, interface: str) -> list[str]:
        """The ``tc`` commands that delay, drop and limit what ``interface`` sends, in this order."""
        netem = []
        if self.delay_us:
            netem.append(f"delay {self.delay_us:g}us")
        if self.loss_percent:
            netem.append(f"loss {self.loss_percent:g}%")
        if not netem:
            return self.rate_commands(interface)
        # netem's own queue must hold everything that is under way; its default of 1000 packets would drop.
        root = f"tc qdisc add dev {interface} root handle 1: netem limit 100000 {' '.join(netem)}"
        return [root, *self.rate_commands(interface, parent="parent 1:1")]


def _number(name: str, text: str | None, units: dict[str, float] | dict[str, int], examples: str) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z%]+)", text.strip().lower())
    if match is None or match[2] not in units:
        raise ValueError(f"{name} is {text!r}; write a number and a unit ({', '.join(units)}), like {examples}")
    return float(match[1]) * units[match[2]]
