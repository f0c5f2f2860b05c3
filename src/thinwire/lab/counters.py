"""What travelled over a link, as the kernel's interface counters say."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """Bytes (with Ethernet, IP and TCP headers) and packets that one end of a link sent and received.

    A packet is what the sender handed over in one piece, which the kernel may cut up later: its headers count once.
    """

    sent_bytes: int
    sent_packets: int
    received_bytes: int
    received_packets: int

    def other_end(self) -> Self:
        """The same traffic as counted at the link's other end."""
        return type(self)(
            sent_bytes=self.received_bytes,
            sent_packets=self.received_packets,
            received_bytes=self.sent_bytes,
            received_packets=self.sent_packets,
        )


def read_counters(table: Path) -> dict[str, LinkCounters]:
    """The counters by interface name in a file like ``/proc/self/net/dev``."""
    counters = {}
    for line in table.read_text().splitlines()[2:]:
        name, numbers = line.split(":")
        fields = [int(number) for number in numbers.split()]
        counters[name.strip()] = LinkCounters(
            received_bytes=fields[0], received_packets=fields[1], sent_bytes=fields[8], sent_packets=fields[9]
        )
    return counters


def interface_bytes() -> tuple[int, int]:
    """Bytes that this process's network interface has sent and received since it exists.

    The interface is the one that gloo uses: the first name in ``GLOO_SOCKET_IFNAME``, which a lab sets, else ``lo``,
    where everything sent is also received.

    Raises:
        ValueError: if there is no such interface.
    """
    name = os.environ.get("GLOO_SOCKET_IFNAME", "lo").split(",")[0]
    counters = read_counters(Path("/proc/self/net/dev"))
    if name not in counters:
        raise ValueError(f"GLOO_SOCKET_IFNAME names {name!r}; interfaces here are {', '.join(sorted(counters))}")
    return counters[name].sent_bytes, counters[name].received_bytes
