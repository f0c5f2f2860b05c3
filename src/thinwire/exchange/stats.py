"""What the exchange did and how long it took."""

from dataclasses import dataclass, field, fields


@dataclass(kw_only=True, slots=True)
class Figures:
    """Sums over one step of training, or over all of them, on one rank."""

    payload_bytes: int = 0
    """Bytes of payload that this rank sent, with those of uncompressed gradients, without the network's headers."""
    uncompressed_bytes: int = 0
    """What an all-reduce of every gradient as it is would have sent."""
    encode_seconds: float = 0.0
    """Time that threads spent encoding; they run beside backward and beside each other."""
    decode_seconds: float = 0.0
    wait_seconds: float = 0.0
    """From the last bucket of backward until the exchange was complete: what backward did not hide."""

    @property
    def compression_ratio(self) -> float:
        """How many times fewer bytes were sent than without compression."""
        return self.uncompressed_bytes / self.payload_bytes if self.payload_bytes else 1.0

    def add(self, other: "Figures") -> None:
        """Add another's figures to these."""
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))

    def divided_by(self, count: int) -> "Figures":
        """The average of sums over ``count``; byte counts are rounded."""
        return Figures(
            **{f.name: type(getattr(self, f.name))(getattr(self, f.name) / max(count, 1)) for f in fields(self)}
        )


@dataclass(kw_only=True, slots=True)
class Stats:
    """The exchange's figures since it was attached."""

    steps: int = 0
    non_finite_steps: int = 0
    """Steps in which some rank sent an Inf or NaN compressed; their errors were not kept."""
    last: Figures = field(default_factory=Figures)
    total: Figures = field(default_factory=Figures)

    @property
    def mean(self) -> Figures:
        """The figures of an average step."""
        return self.total.divided_by(self.steps)
