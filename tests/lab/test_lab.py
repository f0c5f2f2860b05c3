"""The lab itself: real namespaces, real TCP, real signals."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from thinwire.lab import Lab, LabUnavailable, LinkShape

from .processes import eventually, is_running, network_namespaces, with_argument

REASON = Lab.unavailable()
needs_namespaces = pytest.mark.skipif(REASON is not None, reason=str(REASON))

TRANSFER = """
import os, socket, sys, time
sender, num_bytes = int(sys.argv[1]), int(sys.argv[2])
if int(os.environ["RANK"]) == sender:
    with socket.create_server(("0.0.0.0", 5000)) as server, server.accept()[0] as connection:
        connection.sendall(bytes(num_bytes))
        connection.recv(1)
else:
    address = "10.77.0.%d" % (sender + 1)
    while True:
        try:
            connection = socket.create_connection((address, 5000))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    received = first = len(connection.recv(1 << 20))
    started = time.perf_counter()
    while received < num_bytes:
        received += len(connection.recv(1 << 20))
    seconds = time.perf_counter() - started
    connection.sendall(b"x")
    print((received - first) * 8 / seconds / 1e6)
"""

ALL_REDUCE = """
import os, torch, torch.distributed as dist
from thinwire.lab import interface_bytes
dist.init_process_group("gloo")
x = torch.full((250_000,), float(dist.get_rank() + 1))
before = interface_bytes()
dist.all_reduce(x)
dist.barrier()
sent, received = (after - start for after, start in zip(interface_bytes(), before))
print(x.unique().tolist(), sent, received)
dist.destroy_process_group()
"""


class Lines:
    """Collects output by rank."""

    def __init__(self) -> None:
        self.by_rank: dict[int, list[str]] = {}

    def __call__(self, rank: int, line: str) -> None:
        self.by_rank.setdefault(rank, []).append(line)


def python(script: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, arguments)]


def transfers_at(rate_mbit: float, lab: Lab, sender: int, num_bytes: int) -> int:
    """How many transfers it takes until one arrives within 10 % of this rate.

    Every one does, unless the machine is so busy that sender or receiver has to wait for a processor.
    """
    rates: list[float] = []
    for attempt in range(1, 6):
        rates.append(transfer(lab, sender, num_bytes))
        if rates[-1] == pytest.approx(rate_mbit, rel=0.1):
            return attempt
    pytest.fail(f"transfers ran at {rates} Mbit/s instead of {rate_mbit}")


def transfer(lab: Lab, sender: int, num_bytes: int) -> float:
    """The rate in Mbit/s at which the payload of one TCP connection between ranks 0 and 1 arrives."""
    lines = Lines()
    assert lab.run(python(TRANSFER, sender, num_bytes), on_line=lines, timeout_seconds=60) == 0
    return float(lines.by_rank[1 - sender][0])


@needs_namespaces
@pytest.mark.parametrize("sender", [0, 1])
def test_a_tcp_transfer_runs_at_the_links_rate_and_is_counted(sender: int) -> None:
    num_bytes = 8_000_000
    with Lab(num_workers=2, shape=LinkShape.parse(rate="200mbit")) as lab:
        # TCP's payload is 1448 of 1514 bytes on the wire: 191 Mbit/s.
        num_bytes *= transfers_at(200, lab, sender, num_bytes)
        counters = lab.counters()
    assert num_bytes <= counters[sender].sent_bytes <= 1.05 * num_bytes
    assert num_bytes <= counters[1 - sender].received_bytes <= 1.05 * num_bytes
    assert counters[1 - sender].sent_bytes <= 0.05 * num_bytes


@needs_namespaces
def test_without_a_rate_the_link_is_fast() -> None:
    with Lab(num_workers=2) as lab:
        assert transfer(lab, 0, 50_000_000) > 1000


@needs_namespaces
def test_two_labs_at_once_do_not_share_anything() -> None:
    with (
        Lab(num_workers=2, shape=LinkShape.parse(rate="50mbit")) as slow,
        Lab(num_workers=2, shape=LinkShape.parse(rate="200mbit")) as fast,
    ):
        with ThreadPoolExecutor() as pool:
            num_slow = pool.submit(transfers_at, 50, slow, 0, 2_000_000)
            num_fast = pool.submit(transfers_at, 200, fast, 0, 8_000_000)
        for lab, sent_bytes in ((slow, 2_000_000 * num_slow.result()), (fast, 8_000_000 * num_fast.result())):
            assert sent_bytes <= lab.counters()[0].sent_bytes <= 1.05 * sent_bytes


@needs_namespaces
def test_environment_is_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    lines = Lines()
    with Lab(num_workers=3) as lab:
        show = python("import json, os; print(json.dumps(dict(os.environ)))")
        assert lab.run(show, env={"MODEL": "small", "RANK": "9"}, on_line=lines) == 0
    for rank in range(3):
        (line,) = lines.by_rank[rank]
        environment = json.loads(line)
        expected = {
            "RANK": str(rank),
            "WORLD_SIZE": "3",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "GROUP_RANK": str(rank),
            "MASTER_ADDR": "10.77.0.1",
            "GLOO_SOCKET_IFNAME": "wire0",
            "OMP_NUM_THREADS": "1",
            "MODEL": "small",
        }
        assert {name: environment[name] for name in expected} == expected
        assert environment["MASTER_PORT"].isdigit()


@needs_namespaces
def test_users_choice_of_threads_stays() -> None:
    lines = Lines()
    with Lab(num_workers=1) as lab:
        assert lab.run(["sh", "-c", "echo $OMP_NUM_THREADS"], env={"OMP_NUM_THREADS": "2"}, on_line=lines) == 0
    assert lines.by_rank == {0: ["2"]}


@needs_namespaces
def test_a_worker_sees_its_own_process_and_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = Lines()
    show = "import os; print(os.getcwd()); print(os.path.exists(f'/proc/{os.getpid()}/fd'))"
    with Lab(num_workers=1) as lab:
        assert lab.run(python(show), on_line=lines) == 0
    assert lines.by_rank == {0: [str(tmp_path), "True"]}


@needs_namespaces
def test_a_broken_pipe_ends_a_command_silently() -> None:
    lines = Lines()
    with Lab(num_workers=1) as lab:
        assert lab.run(["sh", "-c", "yes | head -1"], on_line=lines) == 0
    assert lines.by_rank == {0: ["y"]}


@needs_namespaces
def test_output_is_prefixed_and_streams_stay_apart(capfd: pytest.CaptureFixture[str]) -> None:
    with Lab(num_workers=2) as lab:
        assert lab.run(["sh", "-c", "echo out; echo err >&2"]) == 0
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[0] out", "[1] out"]
    assert sorted(err.splitlines()) == ["[0] err", "[1] err"]


@needs_namespaces
def test_failure_of_one_rank_ends_all_and_the_lab_can_go_on() -> None:
    with Lab(num_workers=3) as lab:
        started = time.monotonic()
        assert lab.run(["sh", "-c", 'if [ "$RANK" = 1 ]; then exit 42; fi; sleep 60']) == 42
        assert lab.run(["sh", "-c", 'if [ "$RANK" = 2 ]; then kill -ABRT $$; fi; sleep 60']) == 128 + signal.SIGABRT
        assert time.monotonic() - started < 20
        assert lab.run(["true"]) == 0


@needs_namespaces
def test_unknown_program_and_timeout() -> None:
    with Lab(num_workers=2) as lab:
        with pytest.raises(FileNotFoundError, match="no-such-program"):
            lab.run(["no-such-program"])
        with pytest.raises(TimeoutError):
            lab.run(["sleep", "60"], timeout_seconds=0.3)


@needs_namespaces
def test_gloo_all_reduce_crosses_the_link() -> None:
    lines = Lines()
    with Lab(num_workers=2, shape=LinkShape.parse(rate="1gbit")) as lab:
        assert lab.run(python(ALL_REDUCE), on_line=lines, timeout_seconds=120) == 0, lines.by_rank
    for rank in range(2):
        values, sent, received = lines.by_rank[rank][-1].rsplit(maxsplit=2)
        assert values == "[3.0]"
        # Two ranks: each sends its half of the reduction and its half of the result, a million bytes in all.
        assert 1_000_000 <= int(sent) <= 1_100_000
        assert 1_000_000 <= int(received) <= 1_100_000


@needs_namespaces
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_killed_lab_leaves_nothing(number: signal.Signals) -> None:
    namespaces_before, interfaces_before = network_namespaces(), socket.if_nameindex()
    # A word that only these processes have on their command lines, also the one that hides in a session of its own.
    nap = f"600.{os.getpid()}{number.value}"
    script = f"setsid sleep {nap} & sleep {nap}"
    lab = subprocess.Popen(
        [sys.executable, "-m", "thinwire", "lab", "--rate", "200mbit", "--", "sh", "-c", script],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert eventually(lambda: len(with_argument(nap)) == 4, seconds=30)
    sleepers = with_argument(nap)
    inside = network_namespaces() - namespaces_before
    assert len(inside) >= 3

    os.kill(lab.pid, number)
    assert lab.wait(timeout=20) == (-number if number == signal.SIGKILL else 128 + number)

    assert eventually(lambda: not any(is_running(pid) for pid in sleepers))
    assert eventually(lambda: not inside & network_namespaces())
    assert socket.if_nameindex() == interfaces_before


@needs_namespaces
def test_an_exception_leaves_nothing() -> None:
    nap = f"600.{os.getpid()}0"

    def fail() -> None:
        with Lab(num_workers=2) as lab:
            assert lab.run(["sh", "-c", f"setsid sleep {nap} &"]) == 0
            assert eventually(lambda: len(with_argument(nap)) == 2)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert with_argument(nap) == []


# Root, but without the right to make namespaces or to change networks: as an ordinary user is.
UNPRIVILEGED = """
import ctypes, os, sys
for capability in (21, 12):  # CAP_SYS_ADMIN, CAP_NET_ADMIN
    ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
ROOTLESS_LAB = """
import sys
from thinwire.lab import Lab
reason = Lab.unavailable()
print(reason)
if reason is None:
    with Lab(num_workers=2) as lab:
        status = lab.run([sys.executable, "-c", sys.argv[1], "0", "2000000"], on_line=lambda rank, line: None)
        print(status, lab.counters()[0].sent_bytes)
"""
NO_USER_NAMESPACES = """
import ctypes, os, sys
assert ctypes.CDLL(None).unshare(0x10000000) == 0  # CLONE_NEWUSER
with open("/proc/sys/user/max_user_namespaces", "w") as limit:
    limit.write("0")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@needs_namespaces
def test_rootless() -> None:
    done = subprocess.run(
        python(UNPRIVILEGED, "-c", ROOTLESS_LAB, TRANSFER), capture_output=True, text=True, timeout=60, check=True
    )
    reason, *rest = done.stdout.splitlines()
    if reason != "None":
        pytest.skip(reason)
    (result,) = rest
    status, sent_bytes = map(int, result.split())
    assert status == 0
    assert 2_000_000 <= sent_bytes <= 2_100_000


@pytest.mark.skipif(os.geteuid() != 0, reason="takes away rights that only root has")
def test_without_rights_and_user_namespaces_it_says_what_to_do() -> None:
    show = "from thinwire.lab import Lab; print(Lab.unavailable())"
    done = subprocess.run(
        python(NO_USER_NAMESPACES, "-c", UNPRIVILEGED, "-c", show),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "run as root" in done.stdout
    assert "user.max_user_namespaces" in done.stdout


@pytest.mark.parametrize("missing", ["ip", "tc"])
def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool == missing else f"/usr/sbin/{tool}")
    reason = Lab.unavailable()
    assert reason is not None
    assert f"the program {missing} is missing" in reason
    assert "iproute2" in reason


@needs_namespaces
def test_delay_works_or_the_kernel_option_is_named() -> None:
    shape = LinkShape.parse(rate="200mbit", delay="20ms")
    reason = Lab.unavailable(shape)
    if reason is not None:
        assert "CONFIG_NET_SCH_NETEM" in reason
        return
    lines = Lines()
    connect = """
import os, socket, time
if os.environ["RANK"] == "0":
    with socket.create_server(("0.0.0.0", 5000)) as server:
        server.accept()
        server.accept()
else:
    time.sleep(1)
    socket.create_connection(("10.77.0.1", 5000))  # also asks for the address, which takes one more round trip
    started = time.perf_counter()
    socket.create_connection(("10.77.0.1", 5000))
    print(time.perf_counter() - started)
"""
    with Lab(num_workers=2, shape=shape) as lab:
        assert lab.run(python(connect), on_line=lines, timeout_seconds=30) == 0
    assert 0.039 < float(lines.by_rank[1][0]) < 0.2


@pytest.mark.parametrize("num_workers", [0, -1, 251])
def test_number_of_workers_is_checked(num_workers: int) -> None:
    with pytest.raises(ValueError, match="1 to 250"):
        Lab(num_workers=num_workers)


@needs_namespaces
def test_a_failing_command_is_reported_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("thinwire.lab.topology.WIRE", "a-name-that-is-too-long-for-an-interface")
    before = network_namespaces()
    with pytest.raises(LabUnavailable, match=r"`ip link add a-name.*` failed: "), Lab(num_workers=1):
        pass
    assert network_namespaces() <= before
