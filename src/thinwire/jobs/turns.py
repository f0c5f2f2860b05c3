"""Figures of several modes that take turns on the same workers, from the workers' events."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from thinwire.jobs.events import Event


class Turns:
    """Takes the events of all workers and works out what they say.

    Every mode trains for some steps, then the next one does. A step takes as long as on its slowest rank. The first
    turn counts for nothing, and the first step of a turn not for the time, as caches still hold another mode's data.
    """

    def __init__(self, *, num_workers: int, steps_per_turn: int, shared_interface: bool) -> None:
        """Start with no events.

        Args:
            num_workers: whose events are to come.
            steps_per_turn: of every mode.
            shared_interface: whether all workers send through one interface (loopback), so that each reads the bytes
                of all, and of any other program that uses it.
        """
        self.num_workers = num_workers
        self.steps_per_turn = steps_per_turn
        self.shared_interface = shared_interface
        self.parameters = 0
        self._steps: dict[str, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
        self._turns: dict[str, list[Event]] = defaultdict(list)

    def add(self, event: Event) -> None:
        """Take one event."""
        match event["event"]:
            case "ready":
                self.parameters = event["parameters"]
            case "step":
                self._steps[event["mode"]][event["step"]].append(event)
            case "round":
                self._turns[event["mode"]].append(event)

    def steps(self, mode: str) -> list[list[Event]]:
        """Every step that all ranks have done, in order, as the events of all ranks."""
        return [events for _, events in sorted(self._steps[mode].items()) if len(events) == self.num_workers]

    def slowest(self, mode: str, what: str = "seconds") -> list[float]:
        """A time of every step, on the rank where it was longest."""
        return [max(event[what] for event in events) for events in self.steps(mode)]

    def step_seconds(self, mode: str) -> list[float]:
        """How long every step took."""
        return self.slowest(mode)

    def counted(self, of_steps: Sequence[Any]) -> list[Any]:
        """Of a value for each step, those of the steps that count."""
        length = self.steps_per_turn
        return [value for step, value in enumerate(of_steps) if step >= length and step % length]

    def median(self, of_steps: Sequence[float]) -> float | None:
        """The median over the steps that count; None before there is one."""
        counted = self.counted(of_steps)
        return statistics.median(counted) if counted else None

    def median_step_seconds(self, mode: str) -> float | None:
        """The median step; None before there is one that counts."""
        return self.median(self.step_seconds(mode))

    def losses(self, mode: str) -> list[float]:
        """The loss of every step that all ranks have done: the mean over their batches."""
        return [statistics.fmean(event["loss"] for event in events) for events in self.steps(mode)]

    def sent_bytes_per_step(self, mode: str) -> int:
        """Bytes that one worker's interface sent in a step."""
        total = self._per_step(mode, "sent_bytes")
        return round(total / self.num_workers if self.shared_interface else total)

    def payload_bytes_per_step(self, mode: str) -> int:
        """Bytes that one worker handed over for sending in a step, by its own account."""
        return round(self._per_step(mode, "payload_bytes"))

    def _per_step(self, mode: str, which: str) -> float:
        """On average over workers and the turns after the first."""
        turns = [event for event in self._turns[mode] if event["first_step"] > 0]
        total: float = sum(event[which] for event in turns) / sum(event["num_steps"] for event in turns)
        return total
