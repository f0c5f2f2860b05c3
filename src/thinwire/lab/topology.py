"""The lab's network as data: a switch with one port per worker, and the ``ip`` and ``tc`` commands that build it.

    worker 0: wire0 ═══ port0 ┐
    worker 1: wire0 ═══ port1 ┤ switch (a bridge)
    ...

Each name on the left lives in a namespace of its own, the bridge and its ports in one more, so names and addresses are
the same in every lab and never meet those of the machine. What a worker sends is shaped at ``wire0``, what it receives
at its port.
"""

from typing import TypedDict

from thinwire.lab.shape import LinkShape

WIRE = "wire0"
"""The name of a worker's interface, in every worker's namespace."""

MAX_WORKERS = 250
"""One /24 network has no more addresses."""


class WorkerCommands(TypedDict):
    """Commands in one worker's namespace, and those for its port in the switch's namespace."""

    inside: list[str]
    outside: list[str]


class Plan(TypedDict):
    """All commands of a lab. ``{switch}`` in a command stands for the switch's network namespace."""

    switch: list[str]
    workers: list[WorkerCommands]


def address(rank: int) -> str:
    """The IPv4 address of a worker."""
    return f"10.77.0.{rank + 1}"


def port(rank: int) -> str:
    """The name of the switch's interface that leads to a worker."""
    return f"port{rank}"


def plan(num_workers: int, shape: LinkShape) -> Plan:
    """The commands that build a lab of ``num_workers`` workers whose links have this shape."""
    return {
        "switch": ["ip link add switch type bridge mcast_snooping 0", *_up("switch")],
        "workers": [_worker(rank, shape) for rank in range(num_workers)],
    }


def _worker(rank: int, shape: LinkShape) -> WorkerCommands:
    gso = f"gso_max_size {shape.gso_max_bytes}"
    return {
        "inside": [
            "ip link set lo up",
            f"ip link add {WIRE} {gso} type veth peer name {port(rank)} netns {{switch}}",
            f"ip address add {address(rank)}/24 dev {WIRE}",
            *shape.sender_commands(WIRE),
            *_up(WIRE),
        ],
        "outside": [
            f"ip link set {port(rank)} {gso} master switch",
            *shape.rate_commands(port(rank)),
            *_up(port(rank)),
        ],
    }


def _up(interface: str) -> list[str]:
    # Without IPv6 addresses an idle link stays silent, so the counters show the workers' traffic alone.
    return [f"ip link set {interface} addrgenmode none up"]
