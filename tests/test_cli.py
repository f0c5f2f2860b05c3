import json
import math
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import thinwire
from thinwire.cli import TABLE_SHAPE, app
from thinwire.compress import known, parse
from thinwire.lab import Lab

REASON = Lab.unavailable()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "thinwire", *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def assert_one_line_of_error(done: subprocess.CompletedProcess[str], status: int, *words: str) -> None:
    assert done.returncode == status
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    for word in words:
        assert word in line


def test_version() -> None:
    assert run("--version").stdout == f"thinwire {thinwire.__version__}\n"


@pytest.mark.parametrize("command", ["lab", "demo", "bench", "compressors"])
def test_help_names_every_command_and_each_has_its_own(command: str) -> None:
    runner = CliRunner()
    assert command in runner.invoke(app, ["--help"]).output
    result = runner.invoke(app, [command, "--help"], prog_name="thinwire")
    assert result.exit_code == 0
    assert f"Usage: thinwire {command} " in result.output


def test_help_does_not_wait_for_torch() -> None:
    script = """
import sys
sys.argv = ["thinwire", "--help"]
from thinwire.cli import main
try:
    main()
except SystemExit as end:
    sys.exit(end.code or ("torch" in sys.modules or "numba" in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "compressors" in done.stdout


def test_compressors_as_json() -> None:
    result = CliRunner().invoke(app, ["compressors", "--json"])
    assert result.exit_code == 0
    rows = {row["id"]: row for row in json.loads(result.output)}
    assert rows.keys() == {cls.id for cls in known()}
    for row in rows.values():
        compressor = parse(row["spec"])
        assert row["bits_per_element"] == compressor.average_nbytes(TABLE_SHAPE) * 8 / math.prod(TABLE_SHAPE)
        assert (row["reducible"], row["unbiased"]) == (compressor.reducible, compressor.unbiased)
        assert row["error_feedback"] is compressor.keeps_errors
    assert rows["none"]["bits_per_element"] == 32
    assert rows["fp16"]["bits_per_element"] == 16


def test_compressors_as_a_table() -> None:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["compressors"])
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines()]
    assert ["fp16", "16.00", "yes", "–", "yes"] in rows
    assert ["none", "32.00", "yes", "yes", "–"] in rows


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "200"], ["rate", "'200'", "mbit"]),
        (["--delay", "soon"], ["delay", "'soon'", "us"]),
        (["--loss", "100%"], ["loss", "below 100%"]),
        (["--workers", "0"], ["workers", "1 to 250"]),
        (["--timeout", "nan"], ["timeout", "above 0"]),
        (["--timeout", "-1"], ["timeout", "above 0"]),
    ],
)
def test_lab_mistakes_are_one_line(arguments: list[str], words: list[str]) -> None:
    assert_one_line_of_error(run("lab", *arguments, "--", "true"), 2, *words)


def test_lab_without_a_command_is_wrong_usage() -> None:
    done = run("lab", "--workers", "2")
    assert done.returncode == 2
    assert "COMMAND" in done.stderr
    assert "Traceback" not in done.stderr


@needs_namespaces
def test_lab_says_if_there_is_no_such_program() -> None:
    assert_one_line_of_error(run("lab", "--", "no-such-program"), 1, "no-such-program", "PATH")


@needs_namespaces
def test_lab_timeout() -> None:
    assert_one_line_of_error(run("lab", "--timeout", "0.3", "--", "sleep", "60"), 1, "0.3 s")


@needs_namespaces
@pytest.mark.parametrize("separator", [["--"], []])
def test_lab_passes_arguments_output_and_status_on(separator: list[str]) -> None:
    done = run("lab", "--workers", "1", *separator, "sh", "-c", 'echo "$1"; echo problem >&2; exit 5', "sh", "--rate")
    assert done.returncode == 5
    assert done.stdout == "[0] --rate\n"
    assert done.stderr.splitlines()[0] == "[0] problem"
    assert "sent 0.00 MB" in done.stderr


@needs_namespaces
def test_lab_json_has_stdout_for_itself() -> None:
    done = run("lab", "--workers", "2", "--rate", "1gbit", "--json", "--", "echo", "hello")
    result = json.loads(done.stdout)
    assert result["status"] == 0
    assert result["shape"]["rate_bits_per_second"] == 10**9
    assert [link["rank"] for link in result["links"]] == [0, 1]
    assert all(link["sent_bytes"] == 0 for link in result["links"])
    assert sorted(done.stderr.splitlines()) == ["[0] hello", "[1] hello"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rate", "fast"], ["rate", "'fast'"]),
        (["--workers", "1"], ["workers"]),
        (["--steps", "7"], ["steps"]),
        (["--out", __file__], ["test_cli.py", "exists"]),
    ],
)
def test_demo_mistakes_are_one_line(arguments: list[str], words: list[str]) -> None:
    assert_one_line_of_error(run("demo", *arguments), 2, *words)
