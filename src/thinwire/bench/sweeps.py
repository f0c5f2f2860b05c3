"""Which points of a result differ in one setting alone, and so make a curve."""

from dataclasses import dataclass
from typing import Any

AXES = {"link_mbit": "link (Mbit/s)", "workers": "workers", "batch_size": "batch on each worker"}
"""Settings that a curve can run along, with their names for people."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Points that are alike but for one setting."""

    axis: str
    points: tuple[dict[str, Any], ...]
    """In the order of that setting; an unshaped link is faster than any."""

    @property
    def places(self) -> list[str]:
        """The setting's values as text."""
        values = [point["settings"][self.axis] for point in self.points]
        return ["unshaped" if value is None else f"{value:g}" for value in values]

    @property
    def name(self) -> str:
        """Names the sweep's files."""
        return f"{self.axis.removesuffix('_mbit').replace('_', '-')}-{self.points[0]['name'].split('-')[-1]}"


def find_sweeps(points: list[dict[str, Any]]) -> list[Sweep]:
    """All sweeps of two points or more."""
    sweeps = []
    for axis in AXES:
        groups: dict[str, list[dict[str, Any]]] = {}
        for point in points:
            rest = {name: value for name, value in point["settings"].items() if name not in (axis, "network")}
            groups.setdefault(repr(sorted(rest.items())), []).append(point)
        for group in groups.values():
            by_value = {point["settings"][axis]: point for point in group}
            if len(by_value) > 1:
                order = sorted(by_value, key=lambda value: float("inf") if value is None else value)
                sweeps.append(Sweep(axis, tuple(by_value[value] for value in order)))
    return sweeps
