"""The folder of a benchmark's finished runs, one JSON file each, which are not run again."""

from dataclasses import asdict
from json import dumps, loads
from pathlib import Path
from typing import Any, Protocol

from thinwire.jobs.circumstances import circumstances


class NamedRun(Protocol):
    """A dataclass whose fields say all that its outcome depends on."""

    @property
    def name(self) -> str:
        """Names the run's file."""
        ...


class RunStore:
    """The finished runs, one JSON file each: the run's fields, its outcome, and where and when it was measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, run: NamedRun) -> Path:
        return self.folder / f"{run.name}.json"

    def load(self, run: NamedRun) -> dict[str, Any] | None:
        """What was saved for this run; None if it has not been run."""
        return loads(self.path(run).read_text()) if self.path(run).exists() else None

    def save(self, run: NamedRun, outcome: dict[str, Any]) -> None:
        partial = self.path(run).with_suffix(".partial")
        partial.write_text(dumps(asdict(run) | outcome | circumstances(), indent=1) + "\n")
        partial.rename(self.path(run))
