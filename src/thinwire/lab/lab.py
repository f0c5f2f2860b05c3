"""The lab: workers in network namespaces of their own, joined by shaped links, for as long as a ``with`` block."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from thinwire.lab.counters import LinkCounters, read_counters
from thinwire.lab.ranks import supervise
from thinwire.lab.shape import LinkShape
from thinwire.lab.topology import MAX_WORKERS, WIRE, address, plan, port

_SCRIPT = Path(__file__).with_name("namespaces.py")
_PYTHON = [sys.executable, "-I", "-S", str(_SCRIPT)]

_KERNEL_OPTIONS = {
    "type bridge": ("a bridge", "bridge", "CONFIG_BRIDGE"),
    "type veth": ("veth interfaces", "veth", "CONFIG_VETH"),
    " netem ": ("delay and loss (netem)", "sch_netem", "CONFIG_NET_SCH_NETEM"),
    " tbf ": ("a rate limit (tbf)", "sch_tbf", "CONFIG_NET_SCH_TBF"),
}


class LabUnavailable(RuntimeError):  # noqa: N818 - a state of the machine, nobody's mistake
    """The machine cannot build the network; the message says why and what to do."""


class Lab:
    """A network of ``num_workers`` workers whose links have the given shape; a context manager.

    It needs Linux with ``ip`` and ``tc``, and root or unprivileged user namespaces. Nothing of it is visible outside:
    every namespace is anonymous, ends with the ``with`` block or with this process, however that ends, and takes all
    processes that were started in it along.

    Raises:
        ValueError: for a number of workers outside 1..250.
        LabUnavailable: on entering, if this machine cannot build the network; then nothing is left of it.
    """

    def __init__(self, *, num_workers: int, shape: LinkShape | None = None) -> None:
        if not 1 <= num_workers <= MAX_WORKERS:
            raise ValueError(f"the number of workers is {num_workers}; allowed is 1 to {MAX_WORKERS}")
        self.num_workers = num_workers
        self.shape = shape or LinkShape()

    @classmethod
    def unavailable(cls, shape: LinkShape | None = None) -> str | None:
        """Why a lab with such links cannot be used here and what to do, in one sentence; None if it can.

        Builds one of a single worker, which takes about a tenth of a second. Without a shape it tries a rate limit.
        """
        try:
            with cls(num_workers=1, shape=shape or LinkShape(rate_bits_per_second=10**9)):
                return None
        except LabUnavailable as reason:
            return str(reason)

    def __enter__(self) -> Self:
        search = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
        if missing := [tool for tool in ("ip", "tc") if shutil.which(tool, path=search) is None]:
            raise LabUnavailable(f"the program {' and '.join(missing)} is missing; install the package iproute2")
        # In a session of its own, so that Ctrl-C reaches this process alone and workers can be ended in order.
        self._keeper = subprocess.Popen(
            [*_PYTHON, "hold"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={"PATH": search, "LC_ALL": "C"},
        )
        try:
            report = self._build()
            if "error" in report:
                raise LabUnavailable(_explain(report))
        except BaseException:
            self._close()
            raise
        self._pid = report["pid"]
        self._namespaces = report["namespaces"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
        on_line: Callable[[int, str], None] | None = None,
        grace_seconds: float = 5.0,
    ) -> int:
        """Run a command once per worker, as torchrun would on machines with one process each, and wait for all.

        The environment is this process's, changed by ``env``, then by the variables torchrun sets. ``on_line`` gets
        each rank and line of output (both streams, without the newline); by default lines go to the same stream of
        this process with ``[rank]`` before them. The first failure ends the others: SIGTERM, and SIGKILL after
        ``grace_seconds``. A lab can run several commands, one after another.

        Returns:
            0, or the exit status of the first rank that failed; 128 + n if signal n ended it.

        Raises:
            FileNotFoundError: if there is no such program.
            TimeoutError: after ``timeout_seconds``; the command has been ended.
        """
        environment = {**os.environ, **(env or {})}
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(f"there is no program {command[0]!r}; give its path, or a name found in PATH")
        processes = [
            subprocess.Popen(
                [*_PYTHON, "enter", str(self._pid), str(namespace), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**environment, **self._torchrun_variables(rank, environment)},
            )
            for rank, namespace in enumerate(self._namespaces)
        ]
        return supervise(
            processes,
            _print if on_line is None else lambda rank, line, _: on_line(rank, line),
            timeout_seconds=timeout_seconds,
            grace_seconds=grace_seconds,
        )

    def counters(self) -> list[LinkCounters]:
        """What each worker has sent and received over its link since the lab was built, by rank."""
        # Read at the switch's end, which receives what the worker sends.
        ports = read_counters(Path(f"/proc/{self._pid}/net/dev"))
        return [ports[port(rank)].other_end() for rank in range(self.num_workers)]

    def _build(self) -> dict[str, Any]:
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(json.dumps(plan(self.num_workers, self.shape)) + "\n")
        self._keeper.stdin.flush()
        answer = self._keeper.stdout.readline()
        if not answer:
            raise LabUnavailable(f"the process that holds the namespaces ended with status {self._keeper.wait()}")
        report: dict[str, Any] = json.loads(answer)
        return report

    def _close(self) -> None:
        self._keeper.communicate("\n")

    def _torchrun_variables(self, rank: int, environment: Mapping[str, str]) -> dict[str, str]:
        size = str(self.num_workers)
        return {
            "RANK": str(rank),
            "WORLD_SIZE": size,
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            "GROUP_WORLD_SIZE": size,
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": size,
            "MASTER_ADDR": address(0),
            "MASTER_PORT": "29500",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": "thinwire-lab",
            "GLOO_SOCKET_IFNAME": WIRE,
            "NCCL_SOCKET_IFNAME": WIRE,
            "TP_SOCKET_IFNAME": WIRE,
            "OMP_NUM_THREADS": environment.get("OMP_NUM_THREADS", "1"),
            "PYTHONUNBUFFERED": environment.get("PYTHONUNBUFFERED", "1"),
        }


def _print(rank: int, line: str, is_error: bool) -> None:
    print(f"[{rank}] {line}", file=sys.stderr if is_error else sys.stdout, flush=True)


def _explain(report: Mapping[str, Any]) -> str:
    """Turn a failure of the keeper into what a user can do about it."""
    error = report["error"]
    if "command" not in report:
        if report["errno"] in (errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EINVAL, errno.ENOSYS):
            return (
                f"this process may not make network namespaces ({error}); run as root, or allow unprivileged user "
                "namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
                "kernel.apparmor_restrict_unprivileged_userns)"
            )
        return f"the namespaces could not be made: {error}"
    command = report["command"]
    for words, (what, module, option) in _KERNEL_OPTIONS.items():
        if words in f"{command} " and ("unknown" in error.lower() or "not supported" in error.lower()):
            return (
                f"this kernel cannot do {what}; load the module with `modprobe {module}`, or use a kernel built with "
                f"{option}"
            )
    return f"`{command}` failed: {error}"
