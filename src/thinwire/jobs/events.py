"""The lines of JSON with which a worker tells the program that started it what happened."""

import json
from collections.abc import Mapping
from typing import Any

Event = dict[str, Any]

EVENT_PREFIX = "thinwire-event "
"""Starts a line that a worker prints for the program that started it; all other lines are for people."""


def format_event(event: Mapping[str, Any]) -> str:
    """The line that tells the starting program what happened."""
    return EVENT_PREFIX + json.dumps(event)


def parse_event(line: str) -> Event | None:
    """What :func:`format_event` wrote, wherever in the line it starts; None if the line is for people."""
    _, prefix, text = line.partition(EVENT_PREFIX)
    event: Event | None = json.loads(text) if prefix else None
    return event
