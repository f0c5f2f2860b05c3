"""An option made executable for one unit: every task with the buffers it reads and writes, laid out beforehand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future

from thinwire import comm
from thinwire.compress import (
    PAYLOAD_ALIGNMENT_BYTES,
    Codec,
    ErrorFeedback,
    Identity,
    Key,
    Method,
    TwoRoundCodec,
    unit_hash,
)
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

    codec: Codec
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
    source: Values
    items: Sequence[_Item]
    weight: float
    absorbs: Sequence[tuple[TwoRoundCodec, Tensor]] = ()
    """In a second round: the summed payloads of the first."""

    def run(self, ctx: StepContext) -> None:
        """Encode; new errors are held until they are committed."""
        for codec, summed in self.absorbs:
            codec.absorb(summed)
        for item in self.items:
            x = self.source.part(item.region, item.holder)
            if x.dtype is not torch.float32:
                x = x.float()
            key, payload = Key(ctx.seed, ctx.step, item.key, ctx.rank), item.payload
            if item.feedback is None:
                item.codec.encode(x, payload, key, weight=self.weight)
            else:
                unit = ctx.error_unit(item.region.name)
                item.feedback.encode(item.codec, x, payload, key, weight=self.weight, unit=unit)


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode every region's payloads and add them up, in rank order."""

    task: str
    target: Values
    items: Sequence[_Item]

    def run(self, ctx: StepContext) -> None:
        """Decode; float32 targets are written in place, others through a copy."""
        for item in self.items:
            target = self.target.part(item.region, item.holder)
            out = target if target.dtype == torch.float32 else torch.empty_like(target, dtype=torch.float32)
            item.codec.decode(item.payloads, out, Key(ctx.seed, ctx.step, item.key, ctx.rank))
            if out is not target:
                target.copy_(out)

    def is_finite(self) -> bool:
        """Whether nothing that was decoded came from an Inf or NaN on any rank, or is too large for its target."""
        return all(item.codec.is_finite(item.payloads) and self._fits(item) for item in self.items)

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


@dataclass(frozen=True, slots=True)
class Program:
    """What a unit runs through in a step."""

    steps: Sequence[Step]
    sent_bytes: int
    """Bytes of payload that this rank sends."""


class Unit:
    """What is exchanged as one: some regions of gradients with the same option and method.

    Buffers are made once and used again in every step of training, so only one step may be under way.
    """

    def __init__(
        self,
        regions: Sequence[Region],
        option: Option,
        method: Method,
        groups: Sequence[ProcessGroup],
        rank: int,
        memory: ErrorMemory,
        *,
        error_feedback: bool = True,
        riders: Sequence[Region] = (),
    ) -> None:
        """Compile nothing yet.

        Args:
            regions: what is compressed.
            option: its tasks.
            method: how it is compressed.
            groups: a process group for every collective.
            rank: this rank in each of them.
            memory: this rank's errors and states.
            error_feedback: whether errors are kept.
            riders: regions that travel in the same payloads as they are; they take a float32 sum.
        """
        self.regions = [*regions, *riders]
        self.values = Values(self.regions)
        """The gradients' slices; the result is written over them."""
        self.label = str(regions[0]) if len(regions) == 1 else f"{regions[0]} and {len(regions) - 1} more"
        self.numel = sum(r.numel for r in self.regions)
        self._option, self._method, self._num_riders = option, method, len(riders)
        self._groups, self._rank, self._memory, self._error_feedback = groups, rank, memory, error_feedback
        self._programs: dict[int, Program] = {}

    def program(self, step: int) -> Program:
        """What to run in a step; compiled when its phase first comes."""
        phase = self._method.phase(step)
        if (known := self._programs.get(phase)) is None:
            while len(self._programs) > 1:  # phases that alternate come again, those of a warm-up do not
                del self._programs[next(iter(self._programs))]
            known = self._programs[phase] = self._compile(phase)
        return known

    def _compile(self, phase: int) -> Program:
        def codec(region: Region, stage: int) -> Codec:
            return self._method.codec(phase, self._memory.state(region) if stage == WORKER else None)

        num_compressed = len(self.regions) - self._num_riders
        compilation = _Compilation(
            self.values, num_compressed, codec, self._groups, self._rank, self._memory, self._error_feedback
        )
        steps = compilation.run(self._option)
        return Program(steps, sum(s.sent_bytes for s in steps if isinstance(s, Transfer)))


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
        num_compressed: int,
        codec: Callable[[Region, int], Codec],
        groups: Sequence[ProcessGroup],
        rank: int,
        memory: ErrorMemory,
        error_feedback: bool,
    ) -> None:
        self._steps: list[Step] = []
        self._groups, self._size, self._rank = groups, groups[0].size(), rank
        self._memory, self._error_feedback, self._device = memory, error_feedback, memory.device
        self._gradients = self._values = values
        self._num_compressed = num_compressed  # of the gradients' regions; the rest ride along
        self._codec_of = codec
        self._stage = WORKER
        # What is held in encoded form: whether anything, the buffer, and where in it.
        self._encoded = False
        self._buffer = torch.empty(0)
        self._cells: list[Cell] = []
        # What arrived in a first round and is decoded with the second one's.
        self._arrived: list[_Item] = []
        # Every rank's part of every region, while a divisible scheme is open.
        self._division: list[list[Region]] | None = None

    def run(self, option: Option) -> list[Step]:
        """The steps that execute the option's tasks."""
        tasks = option.tasks
        for position, task in enumerate(tasks):
            if task.action is Compute.ENCODE:
                if self._encoded:
                    self._decode(task, self._new_values())
                stage = self._num_transfers()
                self._encode(task, partial(self._codec, stage), divided=_next_divides(tasks, position))
            elif task.action is Compute.REFINE:
                self._refine(task)
            elif task.action is Compute.DECODE:
                self._decode(task, self._gradients if position == len(tasks) - 1 else self._new_values())
            else:
                if not self._encoded:  # a routine on values carries them packed as they are
                    self._encode(task, lambda *_: Identity(), divided=task.action.divides)
                self._transfer(task, task.action)
        if self._encoded:
            self._decode(tasks[-1], self._gradients)
        return self._steps

    def _codec(self, stage: int, holder: int, region: Region) -> Codec:
        if self._values is self._gradients and holder >= self._num_compressed:
            return Identity()
        return self._codec_of(region, stage)

    def _encode(self, task: Task, codec_of: Callable[[int, Region], Codec], *, divided: bool) -> None:
        self._stage = self._num_transfers()
        regions = self._values.regions
        parts = [split(r, self._size) if divided else [r] for r in regions]
        self._cells = []
        offset = 0
        for holder, own in enumerate(parts):
            codecs = [codec_of(holder, part) for part in own]
            for row, (codec, part) in enumerate(zip(codecs, own, strict=True)):
                nbytes = codec.payload_nbytes(part.numel)
                self._cells.append(Cell(codec, holder, part, range(row, row + 1), offset, nbytes))
            # Ranks hold parts of sizes that may differ by one; all leave room for the largest, which is the first.
            largest = self._division[holder][0] if self._division else own[0]
            offset += _aligned(codecs[0].payload_nbytes(largest.numel))
        if divided:
            self._division = parts
        self._buffer = self._new_buffer(self._size if divided else 1, offset)
        self._encoded = True
        weight = 1.0 / self._size if self._stage == WORKER else 1.0
        self._steps.append(Encode(str(task), self._values, self._items(self._feedback), weight))

    def _refine(self, task: Task) -> None:
        """Encode the gradients once more, with the second codecs of those whose first payloads have been summed."""
        first = self._items(lambda *_: None)
        absorbs = [(i.codec, i.payload) for i in first if isinstance(i.codec, TwoRoundCodec)]
        self._arrived = [i for i in first if not isinstance(i.codec, TwoRoundCodec)]
        cells, offset = [], 0
        for cell in self._cells:
            if isinstance(cell.codec, TwoRoundCodec):
                second = cell.codec.second
                nbytes = second.payload_nbytes(cell.region.numel)
                cells.append(replace(cell, codec=second, offset=offset, nbytes=nbytes))
                offset += _aligned(nbytes)
        self._cells = cells
        self._buffer = self._new_buffer(1, offset)
        self._steps.append(Encode(str(task), self._gradients, self._items(self._feedback), 1.0 / self._size, absorbs))

    def _feedback(self, codec: Codec, region: Region) -> ErrorFeedback | None:
        if not self._error_feedback or isinstance(codec, Identity):
            return None
        return self._memory.of(region, self._stage)

    def _decode(self, task: Task, target: Values) -> None:
        items = self._arrived + self._items(lambda *_: None)
        self._steps.append(Decode(str(task), target, items))
        self._values = target
        self._encoded = False
        self._arrived = []

    def _new_values(self) -> Values:
        """Room for what the held payloads decode to, between two steps of a scheme."""
        regions = [cell.region for cell in self._cells]
        return Values(regions, [torch.empty(r.numel, device=self._device) for r in regions])

    def _items(self, feedback: Callable[[Codec, Region], ErrorFeedback | None]) -> list[_Item]:
        return [
            _Item(
                c.codec,
                c.region,
                c.holder,
                c.payloads(self._buffer),
                unit_hash(f"{c.region}@{self._stage}"),
                feedback(c.codec, c.region),
            )
            for c in self._cells
            if c.region.numel
        ]

    def _transfer(self, task: Task, routine: Routine) -> None:
        n, sent = self._size, self._buffer
        num_rows, row_nbytes = sent.shape
        phase = self._num_transfers()
        group = self._groups[phase]
        flat = sent.view(-1)
        start: Callable[[], Future[object]]
        finish: Callable[[], None] = _nothing
        if routine is Routine.ALLREDUCE:
            start = partial(comm.allreduce, group, flat.view(self._sum_dtype(task)))
            sent_bytes = 2 * (n - 1) * flat.numel() // n
        elif routine is Routine.ALLGATHER:
            self._buffer = self._new_buffer(n * num_rows, row_nbytes)
            self._cells = self._gathered(num_rows)
            start = partial(comm.allgather, group, flat, self._buffer.view(-1))
            sent_bytes = (n - 1) * flat.numel()
        else:
            received = self._buffer = self._new_buffer(n, row_nbytes)
            if routine is Routine.REDUCE_SCATTER:
                self._buffer = self._new_buffer(1, row_nbytes)
                finish = partial(comm.add_rows, received.view(-1), self._buffer.view(-1), self._sum_dtype(task))
            self._cells = self._own(range(self._buffer.shape[0]))
            start = partial(comm.alltoall, group, flat, received.view(-1))
            sent_bytes = (n - 1) * row_nbytes
        self._steps.append(Transfer(str(task), phase, start, sent_bytes, finish))

    def _sum_dtype(self, task: Task) -> torch.dtype:
        dtypes = {cell.codec.sum_dtype for cell in self._cells}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        if dtype is None:
            raise ValueError(f"{task} adds payloads up, which those of {self._cells[0].codec} do not allow")
        return dtype

    def _num_transfers(self) -> int:
        return sum(isinstance(s, Transfer) for s in self._steps)

    def _own(self, rows: range) -> list[Cell]:
        """After a first step: this rank's part of every region."""
        return [replace(c, rows=rows) for c in self._cells if c.rows.start == self._rank]

    def _gathered(self, num_rows: int) -> list[Cell]:
        n = self._size
        if self._division is None:  # everyone's payloads of the same regions
            return [replace(c, rows=range(n * num_rows)) for c in self._cells]
        cells = [
            replace(
                c, region=part, rows=range(i * num_rows, (i + 1) * num_rows), nbytes=c.codec.payload_nbytes(part.numel)
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


def _aligned(nbytes: int) -> int:
    return -(-nbytes // PAYLOAD_ALIGNMENT_BYTES) * PAYLOAD_ALIGNMENT_BYTES
