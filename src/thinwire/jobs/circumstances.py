"""Where and when something was measured."""

import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from thinwire import __version__


def circumstances() -> dict[str, Any]:
    """Where and when it was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_name(),
        "versions": {"thinwire": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else platform.machine()
