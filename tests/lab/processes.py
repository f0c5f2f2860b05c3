"""Questions about processes that tests ask."""

import time
from collections.abc import Callable
from pathlib import Path


def eventually(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether the condition comes true within this time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_running(pid: int) -> bool:
    """Whether the process exists and is more than a zombie that waits for its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def with_argument(argument: str) -> list[int]:
    """The processes that have exactly this word on their command line."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                words = (directory / "cmdline").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if argument.encode() in words:
                found.append(int(directory.name))
    return found


def network_namespaces() -> set[str]:
    """The network namespaces in which some process lives."""
    found = set()
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                found.add(str((directory / "ns/net").readlink()))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found
