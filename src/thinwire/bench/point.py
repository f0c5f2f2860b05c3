"""One point of a sweep: a job on some workers joined by some link, measured and kept as a file."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from thinwire.bench.job import Job
from thinwire.bench.memory import measure_memory
from thinwire.bench.result import DEFINITIONS, summarise
from thinwire.bench.workload import version_of
from thinwire.jobs.circumstances import circumstances
from thinwire.jobs.events import Event
from thinwire.jobs.launch import run_workers
from thinwire.jobs.turns import Turns
from thinwire.lab import LinkShape


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What is measured, and on what network.

    Raises:
        ValueError: for a setting out of range.
    """

    job: Job
    num_workers: int = 2
    link_mbit: float | None = None
    """Rate of every link in each direction; None: unshaped."""
    in_lab: bool = True
    """Whether workers have a network of their own, or share the loopback interface."""
    with_memory: bool = False
    """Whether every method is run once more, alone, for its memory."""

    def __post_init__(self) -> None:
        if self.num_workers < 2:
            raise ValueError(f"workers is {self.num_workers}; it takes 2 or more to exchange gradients")
        if self.link_mbit is not None and not self.in_lab:
            raise ValueError(f"a link of {self.link_mbit:g} Mbit/s takes a lab")
        if self.job.num_turns < 2 or self.job.steps_per_turn < 3:
            raise ValueError("it takes 2 turns or more of 3 steps or more, as the first of each do not count")

    @property
    def settings(self) -> dict[str, Any]:
        """All that tells it from other points, as it is saved."""
        settings = {
            **self.job.resolved(),
            "model_version": version_of(self.job.model),
            "workers": self.num_workers,
            "link_mbit": self.link_mbit,
            "network": "lab" if self.in_lab else "loopback",
            "memory_measured": self.with_memory,
            "methods": {method.name: asdict(method) for method in self.job.methods},
        }
        return json.loads(json.dumps(settings))  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """Names the point's file: what matters most, and a digest of all settings."""
        settings = self.settings
        digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=4).hexdigest()
        model = re.sub(r"\W+", "-", Path(self.job.model).name)
        link = "unshaped" if self.link_mbit is None else f"{self.link_mbit:g}mbit"
        batch = "" if settings["batch_size"] is None else f"-batch{settings['batch_size']}"
        return f"{model}{batch}-{self.num_workers}workers-{link}-{digest}"

    def turns(self) -> Turns:
        """What takes this point's events."""
        return Turns(
            num_workers=self.num_workers,
            steps_per_turn=self.job.steps_per_turn,
            shared_interface=not self.in_lab,
        )


def measure(
    point: Point, turns: Turns, on_event: Callable[[Event], None], on_memory: Callable[[str], None]
) -> dict[str, Any]:
    """Run a point and return what is saved of it.

    Args:
        point: what to run.
        turns: takes the events; empty, from :meth:`Point.turns`.
        on_event: called with each event after that.
        on_memory: called with the name of each method before its memory is measured.

    Raises:
        WorkerError: if a worker fails; with its last words.
        LabUnavailable: if the point takes a lab and this machine cannot build one.
    """

    def take(event: Event) -> None:
        turns.add(event)
        on_event(event)

    shape = None
    if point.in_lab:
        rate = None if point.link_mbit is None else round(point.link_mbit * 1e6)
        shape = LinkShape(rate_bits_per_second=rate)
    run_workers("thinwire.bench.worker", point.job.to_json(), num_workers=point.num_workers, shape=shape, on_event=take)
    figures = summarise(turns, point.job)
    if point.with_memory:
        for method in point.job.methods:
            on_memory(method.name)
            figures[method.name] |= measure_memory(method, point.job, point.num_workers)
    return {
        "name": point.name,
        "settings": point.settings,
        "parameters": turns.parameters,
        "methods": figures,
        "definitions": DEFINITIONS,
        **circumstances(),
    }


class Store:
    """The finished points, one JSON file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, point: Point) -> Path:
        """Where a point is, or would be."""
        return self.folder / f"{point.name}.json"

    def load(self, point: Point) -> dict[str, Any] | None:
        """What was measured with these very settings; None if nothing was."""
        path = self.path(point)
        saved: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
        return saved if saved is not None and saved["settings"] == point.settings else None

    def save(self, point: Point, measured: dict[str, Any]) -> None:
        """Write it at once and as a whole."""
        partial = self.path(point).with_suffix(".partial")
        partial.write_text(json.dumps(measured, indent=1) + "\n")
        partial.rename(self.path(point))
