import pytest

from thinwire.jobs.events import format_event, parse_event


def test_events_survive_the_way_through_a_line_of_output():
    event = {"event": "step", "rank": 1, "mode": "ddp", "seconds": 0.1 + 0.2, "loss": float("inf")}
    assert parse_event(format_event(event)) == event
    assert parse_event("[1] " + format_event(event)) == event


@pytest.mark.parametrize("line", ["", "Traceback (most recent call last):", '{"event": "step"}'])
def test_other_lines_are_no_events(line):
    assert parse_event(line) is None
