import socket
from pathlib import Path

import pytest

from thinwire.lab import LinkCounters, interface_bytes
from thinwire.lab.counters import read_counters

TABLE = """\
Inter-|   Receive                                            |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:  100       1    0    0    0     0          0         0   100       1    0    0    0     0       0          0
 wire0:44302     671    0    0    0     0          0         0 5046034  697    0    0    0     0       0          0
"""


def test_reads_the_kernels_table(tmp_path: Path) -> None:
    (tmp_path / "dev").write_text(TABLE)
    counters = read_counters(tmp_path / "dev")
    assert counters["lo"] == LinkCounters(100, 1, 100, 1)
    assert counters["wire0"] == LinkCounters(
        sent_bytes=5046034, sent_packets=697, received_bytes=44302, received_packets=671
    )
    assert counters["wire0"].other_end() == LinkCounters(
        sent_bytes=44302, sent_packets=671, received_bytes=5046034, received_packets=697
    )


@pytest.mark.parametrize("names", [None, "lo", "lo,eth0"])
def test_interface_bytes_counts_what_loopback_carries(monkeypatch: pytest.MonkeyPatch, names: str | None) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    if names is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", names)
    sent_before, received_before = interface_bytes()
    with socket.socket(type=socket.SOCK_DGRAM) as receiver, socket.socket(type=socket.SOCK_DGRAM) as sender:
        receiver.bind(("127.0.0.1", 0))
        sender.sendto(bytes(10_000), receiver.getsockname())
        assert len(receiver.recv(20_000)) == 10_000
    sent, received = interface_bytes()
    assert sent - sent_before >= 10_000
    assert received - received_before >= 10_000


def test_unknown_interface_is_named_with_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "wire7")
    with pytest.raises(ValueError, match=r"'wire7'.* lo"):
        interface_bytes()
