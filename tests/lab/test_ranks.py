"""The supervisor alone, on ordinary processes without any namespace."""

import signal
import subprocess
import time

import pytest

from thinwire.lab.ranks import supervise

from .processes import eventually, is_running


def start(*scripts: str) -> list[subprocess.Popen[bytes]]:
    return [
        subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        for script in scripts
    ]


class Output:
    def __init__(self) -> None:
        self.lines: list[tuple[int, str, bool]] = []

    def __call__(self, rank: int, line: str, is_error: bool) -> None:
        self.lines.append((rank, line, is_error))


def run(*scripts: str, timeout_seconds: float | None = 30, grace_seconds: float = 10) -> tuple[int, Output]:
    output = Output()
    status = supervise(start(*scripts), output, timeout_seconds=timeout_seconds, grace_seconds=grace_seconds)
    return status, output


def test_success_is_zero_and_every_line_arrives() -> None:
    status, output = run("echo a; echo b; printf 'no newline'", "echo problem >&2; printf 'dos\\r\\n'")
    assert status == 0
    assert sorted(output.lines) == [
        (0, "a", False),
        (0, "b", False),
        (0, "no newline", False),
        (1, "dos", False),
        (1, "problem", True),
    ]


def test_long_and_undecodable_output_does_not_block() -> None:
    status, output = run("head -c 1000000 /dev/zero | tr '\\0' x; printf '\\n\\377\\n'")
    assert status == 0
    assert [len(line) for _, line, _ in output.lines] == [1_000_000, 1]


def test_first_failure_ends_the_others_and_gives_the_status() -> None:
    started = time.monotonic()
    status, output = run("trap 'echo ending; exit 0' TERM; sleep 60 & wait", "sleep 0.3; exit 7")
    assert status == 7
    assert sorted(output.lines) == [
        (0, "ending", False),
        (1, "ended with status 7; the other ranks are ended too", True),
    ]
    assert time.monotonic() - started < 9


def test_a_signal_is_128_plus_its_number() -> None:
    assert run("kill -9 $$")[0] == 128 + signal.SIGKILL


def test_who_ignores_sigterm_is_killed_after_the_grace_time() -> None:
    started = time.monotonic()
    status, _ = run("trap '' TERM; sleep 60", "sleep 0.2; exit 3", grace_seconds=0.5)
    assert status == 3
    assert 0.5 < time.monotonic() - started < 9


def test_what_a_command_leaves_behind_ends_with_it() -> None:
    status, output = run("sleep 60 & echo $!")
    assert status == 0
    pid = int(output.lines[0][1])
    assert eventually(lambda: not is_running(pid))


def test_timeout_ends_all_and_raises() -> None:
    processes = start("sleep 60", "sleep 60")
    with pytest.raises(TimeoutError, match=r"more than 0\.3 s"):
        supervise(processes, Output(), timeout_seconds=0.3, grace_seconds=10)
    assert [process.returncode for process in processes] == [-signal.SIGTERM] * 2


def test_an_exception_in_the_callback_ends_all() -> None:
    def emit(rank: int, line: str, is_error: bool) -> None:
        raise KeyboardInterrupt

    processes = start("trap '' TERM; echo x; sleep 60", "sleep 60")
    with pytest.raises(KeyboardInterrupt):
        supervise(processes, emit, timeout_seconds=30, grace_seconds=0.3)
    assert [process.returncode for process in processes] == [-signal.SIGKILL, -signal.SIGTERM]
