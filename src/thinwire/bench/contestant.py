"""One method at work: its own copy of the model, its exchange and its optimizer."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.bench.job import NUM_WARMUP_STEPS, Job
from thinwire.bench.late import LateDDP
from thinwire.bench.method import COMPUTE, DDP_FP16, SSGD, Method
from thinwire.bench.models import Batch, Inputs, Loss
from thinwire.bench.workload import make_workload
from thinwire.demo.modes import warmup_then_cosine

_ONE_BYTE_IN_MB = 2.0**-20


@dataclass(slots=True)
class Contestant:
    """A method's own copy of the model, from the same seed as all others, and its optimizer."""

    method: Method
    ddp: DistributedDataParallel
    batch: Batch
    loss: Loss
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    sync: thinwire.Sync | None
    num_steps: int = 0

    @classmethod
    def build(cls, method: Method, job: Job) -> "Contestant":
        """Make the model, wrap it, and set up the method's exchange; every rank must call."""
        torch.manual_seed(job.seed)
        model, batch, loss = make_workload(job.model, job.batch_size)
        wrap = DistributedDataParallel if method.overlap else LateDDP
        ddp = wrap(
            model,
            gradient_as_bucket_view=True,
            # The same seed everywhere: no need to send the parameters over the slow link. Nor are buffers sent (the
            # statistics of batch normalisation), in every step: that would add the same bytes to every method.
            init_sync=False,
            broadcast_buffers=False,
            bucket_cap_mb=method.bucket_mb if method.fusion else _ONE_BYTE_IN_MB,
        )
        sync = None
        if method.spec == DDP_FP16:
            ddp.register_comm_hook(None, fp16_compress_hook)
        elif method.spec == SSGD and not method.overlap:
            ddp.register_comm_hook(None, allreduce_hook)
        elif method.compresses:
            sync = thinwire.attach(ddp, method.spec, scheme=method.scheme, seed=job.seed)
        settings = job.resolved()
        optimizer = make_optimizer(settings["optimizer"], settings["learning_rate"], ddp)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: warmup_then_cosine(step, NUM_WARMUP_STEPS, job.num_steps)
        )
        return cls(method, ddp, batch, loss, optimizer, schedule, sync)

    def step(self, inputs: Inputs, targets: Tensor) -> dict[str, Any]:
        """One optimizer step; its times in seconds on this rank, and the loss on this rank's batch."""
        started = time.perf_counter()
        self.optimizer.zero_grad()
        with self._exchange_or_not():
            outputs = self.ddp(*inputs) if isinstance(inputs, tuple) else self.ddp(inputs)
            loss = self.loss(outputs, targets)
            torch.autograd.backward(loss)
        backward_ended = time.perf_counter()
        self.optimizer.step()
        self.schedule.step()
        ended = time.perf_counter()
        self.num_steps += 1
        figures = {
            "seconds": ended - started,
            "forward_backward_seconds": backward_ended - started,
            "loss": loss.item(),
        }
        if self.sync is not None:
            last = self.sync.stats().last
            figures |= {
                "encode_seconds": last.encode_seconds,
                "decode_seconds": last.decode_seconds,
                "wait_seconds": last.wait_seconds,
            }
        return figures

    def _exchange_or_not(self) -> AbstractContextManager[None]:
        return self.ddp.no_sync() if self.method.spec == COMPUTE else nullcontext()

    def payload_bytes(self) -> int:
        """Bytes of gradients that this rank has sent so far, without headers: counted, or for DDP what they must be."""
        if self.sync is not None:
            return self.sync.stats().total.payload_bytes
        if self.method.spec == COMPUTE:
            return 0
        share = 2 * (dist.get_world_size() - 1) / dist.get_world_size()
        parameters = [p for p in self.ddp.parameters() if p.requires_grad]
        size = 2 if self.method.spec == DDP_FP16 else None
        return round(self.num_steps * share * sum(p.numel() * (size or p.element_size()) for p in parameters))


def make_optimizer(name: str, learning_rate: float, module: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum."""
    if name == "adamw":
        return torch.optim.AdamW(module.parameters(), lr=learning_rate, fused=True)
    return torch.optim.SGD(module.parameters(), lr=learning_rate, momentum=0.9, fused=True)
