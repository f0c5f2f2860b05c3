"""The ways to exchange gradients that the demo compares."""

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.demo.job import Job
from thinwire.demo.model import ByteTransformer, next_byte_loss

COMPUTE_ONLY = "compute_only"
DDP = "ddp"
DDP_FP16 = "ddp_fp16"
SPECS = {"topk": "topk(ratio=0.01)", "onebit": "onebit"}
"""Modes with a short name; any other name is a thinwire spec itself."""

EMBEDDING = {"embedding.weight": "int8"}
"""Compressed lightly: 1 % of the parameters, which both reads bytes and writes logits, and learns before all others."""


@dataclass(slots=True)
class Contestant:
    """One mode's own copy of the model, from the same seed as all others, and its optimizer."""

    mode: str
    ddp: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    sync: thinwire.Sync | None

    @classmethod
    def build(cls, mode: str, job: Job) -> "Contestant":
        """Make the model, wrap it, and set up the mode's exchange; every rank must call."""
        torch.manual_seed(job.seed)
        # The same seed everywhere: no need to send the parameters over the slow link.
        ddp = DistributedDataParallel(ByteTransformer(job.model), gradient_as_bucket_view=True, init_sync=False)
        sync = None
        if mode == DDP_FP16:
            ddp.register_comm_hook(None, fp16_compress_hook)
        elif mode not in (COMPUTE_ONLY, DDP):
            specs = EMBEDDING | {"*": SPECS.get(mode, mode)}
            sync = thinwire.attach(ddp, specs, start_step=job.num_uncompressed_steps)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=job.learning_rate, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_then_cosine(step, job.num_warmup_steps, job.num_steps)
        )
        return cls(mode, ddp, optimizer, schedule, sync)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One optimizer step; the loss on this rank's batch."""
        self.optimizer.zero_grad()
        with self._exchange_or_not():
            loss = next_byte_loss(self.ddp(inputs), targets)
            torch.autograd.backward(loss)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()

    def _exchange_or_not(self) -> AbstractContextManager[None]:
        return self.ddp.no_sync() if self.mode == COMPUTE_ONLY else nullcontext()

    def payload_bytes(self) -> int | None:
        """Payload bytes that thinwire has sent from this rank so far; None for the other modes."""
        return None if self.sync is None else self.sync.stats().total.payload_bytes


def warmup_then_cosine(step: int, num_warmup_steps: int, num_steps: int) -> float:
    """The learning rate of a step, relative to its peak: a linear rise, times a cosine's fall to zero."""
    return min(1.0, (step + 1) / num_warmup_steps) * (1 + math.cos(math.pi * step / num_steps)) / 2
