"""C06 and contract 9: when one rank fails, all others raise in time, naming step, unit and task, and nothing hangs."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import pytest
import torch.distributed as dist

from tests.exchange.given import attach, given_ddp, given_gradients
from tests.ranks import fresh_ranks
from thinwire.compress import Compressor, Identity, register

TIMEOUT_SECONDS = 5.0
FAULTY_RANK, FAULTY_STEP = 1, 2
NAMES_STEP_UNIT_AND_TASK = re.compile(
    rf"failed at step {FAULTY_STEP}, unit (\w+\[\d+:\d+\]|of \d+ uncompressed elements).*, in \w+@\w+: \w+: ."
)


@dataclass
class Failed:
    """What a rank saw of a failing backward, and of another one after it."""

    seconds: float
    message: str
    again_seconds: float
    again_message: str


def train(rank: int, spec: str, scheme: str, at_fault) -> Failed | None:
    """Train until backward raises; the faulty rank calls ``at_fault`` in the middle of one backward."""
    attach(given_ddp(), spec, scheme=scheme).detach()  # compiles; may take longer than the short timeout allows
    dist.barrier()
    ddp = given_ddp(process_group=dist.new_group(timeout=timedelta(seconds=TIMEOUT_SECONDS)))
    attach(ddp, spec, scheme=scheme)
    running = {"step": 0}

    def in_backward(_) -> None:
        if rank == FAULTY_RANK and running["step"] == FAULTY_STEP:
            at_fault()

    ddp.module.third.register_hook(in_backward)
    for step in range(FAULTY_STEP + 1):
        running["step"] = step
        loss = ddp(given_gradients(rank, step))
        started = time.monotonic()
        try:
            loss.backward()
        except RuntimeError as error:
            seconds, message = time.monotonic() - started, str(error)
            running["step"] = -1
            again = time.monotonic()
            with pytest.raises(RuntimeError) as second:
                ddp(given_gradients(rank, step + 1)).backward()
            return Failed(seconds, message, time.monotonic() - again, str(second.value))
    return None


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(0)


def hang() -> None:
    time.sleep(TIMEOUT_SECONDS + 6)


@pytest.mark.parametrize(
    ("spec", "scheme", "at_fault"),
    [
        ("onebit", "alltoall", kill),
        ("randomk(ratio=0.2)", "allreduce", leave),
        ("randomk(ratio=0.2)", "reduce_scatter", hang),
    ],
    ids=["killed", "ended", "hanging"],
)
def test_a_rank_that_is_gone(spec, scheme, at_fault):
    results = fresh_ranks(3, train, spec, scheme, at_fault, may_fail=True)
    for rank, (problem, failed) in enumerate(results):
        if rank != FAULTY_RANK:
            assert problem is None, problem
            assert NAMES_STEP_UNIT_AND_TASK.search(failed.message)
            assert failed.seconds < TIMEOUT_SECONDS + 5
            assert failed.again_seconds < 1
            assert NAMES_STEP_UNIT_AND_TASK.search(failed.again_message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Failing(Compressor):
    """Sends everything, and raises on one rank in one step."""

    id: ClassVar[str] = "failing"

    def payload_nbytes(self, numel: int) -> int:
        return Identity().payload_nbytes(numel)

    def encode(self, x, payload, key, *, weight=1.0) -> None:
        if key.rank == FAULTY_RANK and key.step == FAULTY_STEP:
            raise ArithmeticError("no idea how to encode this")
        Identity().encode(x, payload, key, weight=weight)

    def decode(self, payloads, out, key) -> None:
        Identity().decode(payloads, out, key)

    def is_finite(self, payloads) -> bool:
        return Identity().is_finite(payloads)


def train_with_failing_compressor(rank: int) -> Failed | None:
    register(Failing)  # here, in a process of its own, where no other test meets it
    return train(rank, "failing", "allgather", lambda: None)


def test_a_compressor_that_raises_on_one_rank():
    for rank, (_, failed) in enumerate(fresh_ranks(3, train_with_failing_compressor)):
        assert NAMES_STEP_UNIT_AND_TASK.search(failed.message)
        assert failed.seconds < TIMEOUT_SECONDS + 5
        assert failed.again_seconds < 1
        if rank == FAULTY_RANK:
            assert "in encode@cpu: ArithmeticError: no idea how to encode this" in failed.message


SCRIPT = """
import datetime, os, signal, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import thinwire

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.barrier()
group = dist.new_group(timeout=datetime.timedelta(seconds=float(sys.argv[1])))
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
ddp = DistributedDataParallel(model, bucket_cap_mb=0.01, process_group=group)
thinwire.attach(ddp, "onebit", scheme="alltoall", chunk_bytes=4096)
for step in range(4):
    if step == 2:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        print("next", flush=True)
    ddp(torch.randn(8, 64)).square().mean().backward()
"""


def test_a_script_that_catches_nothing_ends(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(TIMEOUT_SECONDS)],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert ranks[0].stdout.readline() == "next\n"
        _, errors = ranks[0].communicate(timeout=TIMEOUT_SECONDS + 5)
        assert ranks[0].returncode != 0
        assert "gradient exchange failed at step 2, unit " in errors
        assert ranks[1].wait() == -signal.SIGKILL
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
