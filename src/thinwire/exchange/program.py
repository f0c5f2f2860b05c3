"""An option made executable for one unit: every task with the buffers it reads and writes, laid out beforehand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future

from thinwire import comm
from thinwire.compress import PAYLOAD_ALIGNMENT_BYTES, Compressor, ErrorFeedback, Identity, Key, unit_hash
from thinwire.exchange.layout import Cell, Region, split
from thinwire.exchange.memory import WORKER, ErrorMemory
from thinwire.strategy import Compute, Option, Routine, Task


@dataclass(frozen=True, slots=True)
class StepContext:
    """What is the same for all units during one step of training."""

    seed: int
    step: int
    rank: int
    error_unit: Callable[[str], float]
    """By parameter name; see :class:`thinwire.compress.ErrorFeedback`."""


class Values:
    """The uncompressed regions that a unit holds between two tasks: flat float32 tensors, or slices of gradients."""

    __slots__ = ("_parts", "_tensors", "regions")

    def __init__(self, regions: Sequence[Region], tensors: Sequence[Tensor] = ()) -> None:
        self.regions = regions
        self.hold(tensors)

    def hold(self, tensors: Sequence[Tensor]) -> None:
        """Set the tensor of every region."""
        self._tensors = tensors
        self._parts: dict[tuple[int, int, int], Tensor] = {}

    def part(self, region: Region, holder: int) -> Tensor:
        """The elements of ``region``, which lies within the ``holder``-th of the held regions; a view."""
        key = (holder, region.start, region.stop)
        if (part := self._parts.get(key)) is None:
            start = region.start - self.regions[holder].start
            part = self._parts[key] = self._tensors[holder][start : start + region.numel]
        return part


@dataclass(slots=True)
class _Item:
    """One region, its payloads in a buffer, and what else its compression needs."""

    region: Region
    holder: int
    payloads: Tensor
    key: int
    feedback: ErrorFeedback | None = None
    payload: Tensor = field(init=False)
    """The first of them: where it is encoded to."""

    def __post_init__(self) -> None:
        self.payload = self.payloads[0]


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode every region into its place in the buffer."""

    task: str
    compressor: Compressor
    source: Values
    items: Sequence[_Item]
    weight: float

    def run(self, ctx: StepContext) -> None:
        """Encode; new errors are held until they are committed."""
        for item in self.items:
            x = self.source.part(item.region, item.holder)
            if x.dtype is not torch.float32:
                x = x.float()
            key, payload = Key(ctx.seed, ctx.step, item.key, ctx.rank), item.payload
            if item.feedback is None:
                self.compressor.encode(x, payload, key, weight=self.weight)
            else:
                unit = ctx.error_unit(item.region.name)
                item.feedback.encode(self.compressor, x, payload, key, weight=self.weight, unit=unit)


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode every region's payloads and add them up, in rank order."""

    task: str
    compressor: Compressor
    target: Values
    items: Sequence[_Item]

    def run(self, ctx: StepContext) -> None:
        """Decode; float32 targets are written in place, others through a copy."""
        for item in self.items:
            target = self.target.part(item.region, item.holder)
            out = target if target.dtype == torch.float32 else torch.empty_like(target, dtype=torch.float32)
            self.compressor.decode(item.payloads, out, Key(ctx.seed, ctx.step, item.key, ctx.rank))
            if out is not target:
                target.copy_(out)

    def is_finite(self) -> bool:
        """Whether nothing that was decoded came from an Inf or NaN on any rank, or is too large for its target."""
        return all(self.compressor.is_finite(item.payloads) and self._fits(item) for item in self.items)

    def _fits(self, item: _Item) -> bool:
        target = self.target.part(item.region, item.holder)
        return target.dtype == torch.float32 or bool(torch.isfinite(target).all())


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Transfer:
    """One collective."""

    task: str
    phase: int
    """Its number among the unit's collectives: the lane and the process group that it uses."""
    start: Callable[[], "Future[object]"]
    sent_bytes: int
    """Bytes of payload that this rank sends."""
    finish: Callable[[], None] = _nothing
    """What remains to be done with what was received."""


Step = Encode | Decode | Transfer


class Unit:
    """What is exchanged as one: some regions of gradients with the same option and compressor.

    Buffers are made once and used again in every step of training, so only one step may be under way.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        option: Option,
        compressor: Compressor,
        groups: Sequence[ProcessGroup],
        rank: int,
        memory: ErrorMemory | None,
        device: torch.device,
    ) -> None:
        self.regions = list(regions)
        self.values = Values(self.regions)
        """The gradients' slices; the result is written over them."""
        self.label = str(regions[0]) if len(regions) == 1 else f"{regions[0]} and {len(regions) - 1} more"
        self.steps = _Compilation(self.values, groups, rank, memory, device).run(option, compressor)
        self.numel = sum(r.numel for r in regions)
        self.sent_bytes = sum(s.sent_bytes for s in self.steps if isinstance(s, Transfer))


def error_stages(option: Option) -> set[int]:
    """The stages at which an option compresses: how many collectives come before."""
    return {
        sum(isinstance(before.action, Routine) for before in option.tasks[:position])
        for position, task in enumerate(option.tasks)
        if task.action is Compute.ENCODE
    }


class _Compilation:
    """Walks through an option's tasks, keeping track of what the unit holds after each."""

    def __init__(
        self,
        values: Values,
        groups: Sequence[ProcessGroup],
        rank: int,
        memory: ErrorMemory | None,
        device: torch.device,
    ) -> None:
        self._steps: list[Step] = []
        self._groups, self._size, self._rank = groups, groups[0].size(), rank
        self._memory, self._device = memory, device
        self._gradients = self._values = values
        self._stage = WORKER
        # What is held in encoded form: the buffer, where in it, and the compressor that decodes it.
        self._codec: Compressor | None = None
        self._buffer = torch.empty(0)
        self._cells: list[Cell] = []
        # Every rank's part of every region, while a divisible scheme is open.
        self._division: list[list[Region]] | None = None

    def run(self, option: Option, compressor: Compressor) -> list[Step]:
        """The steps that execute the option's tasks."""
        tasks = option.tasks
        for position, task in enumerate(tasks):
            if task.action is Compute.ENCODE:
                if self._codec is not None:
                    self._decode(task, self._new_values())
                self._encode(task, compressor, divided=_next_divides(tasks, position))
            elif task.action is Compute.DECODE:
                self._decode(task, self._gradients if position == len(tasks) - 1 else self._new_values())
            elif isinstance(task.action, Routine):
                if self._codec is None:  # a routine on values carries them packed as they are
                    self._encode(task, Identity(), divided=task.action.divides)
                self._transfer(task, task.action)
        if self._codec is not None:
            self._decode(tasks[-1], self._gradients)
        return self._steps

    def _encode(self, task: Task, codec: Compressor, *, divided: bool) -> None:
        self._stage = self._num_transfers()
        regions = self._values.regions
        parts = [split(r, self._size) if divided else [r] for r in regions]
        self._cells = []
        offset = 0
        for holder, own in enumerate(parts):
            for row, part in enumerate(own):
                nbytes = codec.payload_nbytes(part.numel)
                self._cells.append(Cell(holder, part, range(row, row + 1), offset, nbytes))
            # Ranks hold parts of sizes that may differ by one; all leave room for the largest, which is the first.
            largest = self._division[holder][0] if self._division else own[0]
            offset += _aligned(codec.payload_nbytes(largest.numel))
        if divided:
            self._division = parts
        self._buffer = self._new_buffer(self._size if divided else 1, offset)
        self._codec = codec
        memory = None if isinstance(codec, Identity) else self._memory
        items = self._items(lambda region: memory.of(region, self._stage) if memory is not None else None)
        weight = 1.0 / self._size if self._stage == WORKER else 1.0
        self._steps.append(Encode(str(task), codec, self._values, items, weight))

    def _decode(self, task: Task, target: Values) -> None:
        assert self._codec is not None
        self._steps.append(Decode(str(task), self._codec, target, self._items(lambda _: None)))
        self._values = target
        self._codec = None

    def _new_values(self) -> Values:
        """Room for what the held payloads decode to, between two steps of a scheme."""
        regions = [cell.region for cell in self._cells]
        return Values(regions, [torch.empty(r.numel, device=self._device) for r in regions])

    def _items(self, feedback: Callable[[Region], ErrorFeedback | None]) -> list[_Item]:
        return [
            _Item(
                c.region, c.holder, c.payloads(self._buffer), unit_hash(f"{c.region}@{self._stage}"), feedback(c.region)
            )
            for c in self._cells
            if c.region.numel
        ]

    def _transfer(self, task: Task, routine: Routine) -> None:
        assert self._codec is not None
        codec, n, sent = self._codec, self._size, self._buffer
        num_rows, row_nbytes = sent.shape
        phase = self._num_transfers()
        group = self._groups[phase]
        flat = sent.view(-1)
        start: Callable[[], Future[object]]
        finish: Callable[[], None] = _nothing
        if routine is Routine.ALLREDUCE:
            start = partial(comm.allreduce, group, flat.view(_sum_dtype(codec, task)))
            sent_bytes = 2 * (n - 1) * flat.numel() // n
        elif routine is Routine.ALLGATHER:
            self._buffer = self._new_buffer(n * num_rows, row_nbytes)
            self._cells = self._gathered(codec, num_rows)
            start = partial(comm.allgather, group, flat, self._buffer.view(-1))
            sent_bytes = (n - 1) * flat.numel()
        else:
            received = self._buffer = self._new_buffer(n, row_nbytes)
            if routine is Routine.REDUCE_SCATTER:
                self._buffer = self._new_buffer(1, row_nbytes)
                finish = partial(comm.add_rows, received.view(-1), self._buffer.view(-1), _sum_dtype(codec, task))
            self._cells = self._own(range(self._buffer.shape[0]))
            start = partial(comm.alltoall, group, flat, received.view(-1))
            sent_bytes = (n - 1) * row_nbytes
        self._steps.append(Transfer(str(task), phase, start, sent_bytes, finish))

    def _num_transfers(self) -> int:
        return sum(isinstance(s, Transfer) for s in self._steps)

    def _own(self, rows: range) -> list[Cell]:
        """After a first step: this rank's part of every region."""
        return [replace(c, rows=rows) for c in self._cells if c.rows.start == self._rank]

    def _gathered(self, codec: Compressor, num_rows: int) -> list[Cell]:
        n = self._size
        if self._division is None:  # everyone's payloads of the same regions
            return [replace(c, rows=range(n * num_rows)) for c in self._cells]
        cells = [
            replace(
                c, region=part, rows=range(i * num_rows, (i + 1) * num_rows), nbytes=codec.payload_nbytes(part.numel)
            )
            for c, parts in zip(self._cells, self._division, strict=True)
            for i, part in enumerate(parts)
        ]
        self._division = None
        return cells

    def _new_buffer(self, num_rows: int, row_nbytes: int) -> Tensor:
        # Zeros, because the gaps between payloads travel too.
        return torch.zeros((num_rows, row_nbytes), dtype=torch.uint8, device=self._device)


def _next_divides(tasks: Sequence[Task], position: int) -> bool:
    following = tasks[position + 1].action
    return isinstance(following, Routine) and following.divides


def _sum_dtype(codec: Compressor, task: Task) -> torch.dtype:
    if codec.sum_dtype is None:
        raise ValueError(f"{task} adds payloads up, which those of {codec} do not allow; use another scheme")
    return codec.sum_dtype


def _aligned(nbytes: int) -> int:
    return -(-nbytes // PAYLOAD_ALIGNMENT_BYTES) * PAYLOAD_ALIGNMENT_BYTES
