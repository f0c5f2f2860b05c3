"""A result as a measurement writes it, without measuring."""

from pathlib import Path

from thinwire.bench.job import Job, with_compute
from thinwire.bench.method import parse_method
from thinwire.bench.point import Point
from thinwire.bench.result import DEFINITIONS, summarise

SECONDS = {"compute": 1.0, "ssgd": 4.0, "fp16": 2.5}
SENT_BYTES = {"compute": 0, "ssgd": 800_000, "fp16": 410_000}

USERS_MODEL = """
import torch
from torch import nn


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(96, 128), nn.Linear(96, 128)

    def forward(self, x, y):
        return self.left(x) + self.right(y)


def make():
    def batch(step, rank):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x, y = torch.randn(2, 4, 96, generator=generator)
        return (x, y), torch.zeros(4, 128)

    return Sum(), batch, nn.functional.mse_loss


def broken():
    raise RuntimeError("no such data here")


def wrong():
    return Sum()
"""
"""24,832 parameters, of which 24,576 are compressed."""


def users_model(folder: Path, function: str = "make") -> str:
    file = folder / "users_model.py"
    file.write_text(USERS_MODEL)
    return f"{file}:{function}"


def point(*methods: str, **settings) -> Point:
    own = {name: settings.pop(name) for name in ("num_workers", "link_mbit", "in_lab") if name in settings}
    job = Job(methods=with_compute(tuple(map(parse_method, methods or ("ssgd", "fp16")))), **settings)
    return Point(job=job, **own)


def fill(turns, names=("compute", "ssgd", "fp16")) -> None:
    """Two turns of six steps. Rank 1 is faster; the first turn and the first step of each are very slow."""
    for rank in range(2):
        turns.add({"event": "ready", "rank": rank, "parameters": 200_000})
        for name in names:
            for step in range(12):
                slow = 50.0 if step <= 6 else 0.0
                seconds = SECONDS[name] + slow - 0.5 * rank
                event = {
                    "event": "step",
                    "rank": rank,
                    "mode": name,
                    "step": step,
                    "seconds": seconds,
                    "forward_backward_seconds": seconds - 0.25,
                    "loss": 3.0 - 0.1 * step + (0.5 if rank else -0.5),
                }
                if name == "fp16":
                    event |= {"encode_seconds": 0.3 + slow, "decode_seconds": 0.1, "wait_seconds": 1.2}
                turns.add(event)
            for first_step, extra in ((0, 5000), (6, 0)):
                turns.add(
                    {
                        "event": "round",
                        "rank": rank,
                        "mode": name,
                        "first_step": first_step,
                        "num_steps": 6,
                        "sent_bytes": 6 * SENT_BYTES[name] + extra,
                        "payload_bytes": 6 * SENT_BYTES[name] - (600 if SENT_BYTES[name] else 0),
                    }
                )


def measured(of: Point) -> dict:
    turns = of.turns()
    fill(turns)
    return {
        "name": of.name,
        "settings": of.settings,
        "parameters": turns.parameters,
        "methods": summarise(turns, of.job),
        "definitions": DEFINITIONS,
        "date": "2026-01-01T00:00:00+00:00",
        "cpu": "2 × a processor",
        "versions": {"thinwire": "0", "torch": "2", "python": "3"},
    }
