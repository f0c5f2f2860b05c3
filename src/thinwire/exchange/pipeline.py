"""The runtime: carries every unit of a step through its program, beside backward."""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.distributed import ProcessGroup
from torch.futures import Future

from thinwire import comm
from thinwire.comm import Lane
from thinwire.exchange.buckets import BucketPlan, plan_bucket
from thinwire.exchange.layout import Region
from thinwire.exchange.memory import ErrorMemory
from thinwire.exchange.program import Decode, Encode, StepContext, Transfer, Unit
from thinwire.exchange.program import Step as UnitStep
from thinwire.exchange.stats import Figures, Stats
from thinwire.exchange.workers import WorkerPool
from thinwire.strategy import Choice

FUSED_BYTES = 64 << 10
"""Uncompressed gradients of fewer bytes wait for those of the next bucket: they cost less than another collective."""


class ExchangeError(RuntimeError):
    """The exchange cannot go on: names the step, the unit and the task that failed, and the cause.

    DDP raises it out of ``backward()`` as a RuntimeError with the same text.
    """

    def __init__(self, step: int, unit: str, task: str, cause: BaseException) -> None:
        super().__init__(
            f"gradient exchange failed at step {step}, unit {unit}, in {task}: {type(cause).__name__}: {cause}. "
            "If nothing is wrong on this rank, look at the others' output: one of them has probably ended or hung."
        )


@dataclass(slots=True)
class _StepRun:
    """One step of training under way."""

    context: StepContext
    figures: Figures = field(default_factory=Figures)
    buckets: "list[_BucketRun]" = field(default_factory=list)
    waiting: "dict[torch.dtype, list[tuple[_BucketRun, Sequence[Tensor]]]]" = field(default_factory=dict)
    """Small uncompressed gradients that will share a collective."""
    num_open: int = 0
    finite: bool = True
    backward_ended: float | None = None


@dataclass(slots=True)
class _BucketRun:
    """One bucket under way."""

    step: _StepRun
    buffer: Tensor
    num_open: int
    is_last: bool
    strided: Sequence[tuple[Tensor, Tensor]]
    """Gradients that are not contiguous, with the contiguous copies that are exchanged for them."""
    done: "Future[Tensor]" = field(default_factory=Future)
    delivered: bool = False


@dataclass(frozen=True, slots=True)
class _Layout:
    """What a bucket's buffer holds, and what is done with it."""

    buffer: Tensor
    plan: BucketPlan
    flats: Sequence[Tensor]
    """The gradients, one-dimensional: views, or copies of what is not contiguous."""
    strided: Sequence[tuple[Tensor, Tensor]]
    """The latter, with their copies."""


@dataclass(slots=True)
class _UnitRun:
    """One unit under way: the number of its next step, and its places in the lanes."""

    unit: Unit
    steps: Sequence[UnitStep]
    bucket: _BucketRun
    places: Sequence[int]
    position: int = 0


class Exchange:
    """Exchanges the gradients of every bucket that DDP hands over.

    Backward's own thread starts what it can; everything that follows runs on worker threads, which collectives in the
    backend's threads only wake up. Encoding goes before decoding, because the network waits for it.
    """

    def __init__(
        self,
        *,
        choices: Mapping[str, Choice],
        names: Mapping[int, str],
        group: ProcessGroup,
        phase_groups: Sequence[ProcessGroup],
        make_unit: Callable[[Sequence[Region], Choice, Sequence[Region]], Unit],
        sees_whole: Callable[[Choice], bool],
        memory: ErrorMemory,
        max_numel: int,
        num_threads: int,
        seed: int,
        start_step: int,
        error_units: Callable[[], Callable[[str], float]],
    ) -> None:
        """Made by :func:`thinwire.attach`, which documents the settings.

        Args:
            choices: what happens to each gradient, by parameter name.
            names: parameter names by ``id(parameter)``.
            group: DDP's process group, for plain all-reduces.
            phase_groups: a group of the same ranks for every collective of a unit's program.
            make_unit: builds a unit.
            sees_whole: whether a choice compresses whole gradients.
            memory: error memories of this rank.
            max_numel: most elements in a chunk and in a unit.
            num_threads: worker threads.
            seed: of all randomness.
            start_step: number of steps that are exchanged uncompressed at first.
            error_units: called once a step for the unit of each parameter's errors.
        """
        self.step, self.seed = 0, seed
        self.stats = Stats()
        self.memory = memory
        self._choices, self._names = choices, names
        self._group, self._size, self._rank = group, group.size(), group.rank()
        self._make_unit, self._sees_whole, self.max_numel = make_unit, sees_whole, max_numel
        self._start_step, self._error_units = start_step, error_units
        self._timeout_seconds = comm.timeout_of(group, memory.device).total_seconds()
        self._compresses = any(choice.option.compresses for choice in choices.values())
        self._plans: dict[int, tuple[Sequence[str], BucketPlan]] = {}
        self._layouts: dict[int, _Layout] = {}
        self._lanes = [Lane() for _ in phase_groups]
        self._pool = WorkerPool(num_threads)
        # At the end of the process too, or when nobody refers to the exchange any more.
        self._close_pool = weakref.finalize(self, self._pool.close)
        self._lock = threading.Lock()
        self._num_under_way = 0  # collectives
        self._all_ended = threading.Condition(self._lock)
        self._run: _StepRun | None = None
        self._failure: ExchangeError | None = None

    def close(self) -> None:
        """End the worker threads. Nothing may be under way."""
        self._close_pool()
        self._layouts.clear()
        self._plans.clear()

    # Backward's thread: one call for every bucket, in the same order on all ranks.

    def on_bucket(self, bucket: GradBucket) -> "Future[Tensor]":
        """Start the exchange of a bucket; the future holds its buffer with the mean over ranks.

        Raises:
            ExchangeError: if the exchange has failed before.
        """
        if self._failure is not None:
            self._raise_failure()
        step = self._run or self._begin_step()
        buffer, is_last = bucket.buffer(), bucket.is_last()
        layout = None if buffer.is_sparse or self.step < self._start_step else self._lay_out(bucket, buffer)
        if layout is None or not layout.plan.units:
            run = self._open(step, buffer, num_parts=1, is_last=is_last)
            result = run.done.then(self._deliver)
            self._allreduce_whole(run)
        else:
            plan = layout.plan
            num_parts = len(plan.units) + bool(plan.plain)
            run = self._open(step, buffer, num_parts=num_parts, is_last=is_last, strided=layout.strided)
            result = run.done.then(self._deliver)
            if plan.plain:
                step.waiting.setdefault(buffer.dtype, []).append((run, [layout.flats[i] for i in plan.plain]))
            for unit, _ in plan.units:
                program = unit.program(self.step)
                places = [self._lanes[s.phase].reserve() for s in program.steps if isinstance(s, Transfer)]
                step.figures.payload_bytes += program.sent_bytes
                self._advance(_UnitRun(unit, program.steps, run, places))
        self._allreduce_waiting(step, all_of_them=is_last)
        return result

    def _begin_step(self) -> _StepRun:
        self._run = _StepRun(StepContext(self.seed, self.step, self._rank, self._error_units()))
        return self._run

    def _open(
        self,
        step: _StepRun,
        buffer: Tensor,
        *,
        num_parts: int,
        is_last: bool,
        strided: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> _BucketRun:
        run = _BucketRun(step, buffer, num_parts, is_last, strided)
        if not buffer.is_sparse:
            step.figures.uncompressed_bytes += self._allreduce_bytes(buffer)
        with self._lock:
            failed = self._failure is not None
            if not failed:
                step.buckets.append(run)
                step.num_open += 1
                if is_last:
                    step.backward_ended = time.perf_counter()
        if failed:  # too late for _give_up to end this bucket
            self._raise_failure()
        return run

    def _lay_out(self, bucket: GradBucket, buffer: Tensor) -> _Layout:
        known = self._layouts.get(bucket.index())
        # The same memory is the same bucket: as long as it is referred to here, nothing else can be in its place.
        if known is None or known.strided or known.buffer.data_ptr() != buffer.data_ptr():
            plan = self._plan_of(bucket, buffer)
            gradients = _gradients(bucket)
            flats = [g.reshape(-1) for g in gradients]
            strided = [(g, flat) for g, flat in zip(gradients, flats, strict=True) if not g.is_contiguous()]
            for unit, owners in plan.units:
                unit.values.hold([flats[i][r.start : r.stop] for i, r in zip(owners, unit.regions, strict=True)])
            known = self._layouts[bucket.index()] = _Layout(buffer, plan, flats, strided)
        return known

    def _plan_of(self, bucket: GradBucket, buffer: Tensor) -> BucketPlan:
        names = [self._names[id(p)] for p in bucket.parameters()]
        known = self._plans.get(bucket.index())
        if known is None or known[0] != names:  # DDP rebuilds its buckets after the first step
            packable = buffer.dtype in (torch.float16, torch.bfloat16, torch.float32)
            choices = [(name, self._choices[name]) for name in names]
            known = self._plans[bucket.index()] = (
                names,
                plan_bucket(choices, self.max_numel, packable, self._sees_whole, self._make_unit),
            )
        return known[1]

    def _allreduce_whole(self, run: _BucketRun) -> None:
        buffer = run.buffer
        buffer.div_(self._size)
        self._allreduce(run.step, [run], buffer, lambda: None)

    def _allreduce_waiting(self, step: _StepRun, *, all_of_them: bool) -> None:
        for dtype, waiting in list(step.waiting.items()):
            gradients = [g for _, of_bucket in waiting for g in of_bucket]
            if all_of_them or sum(g.numel() for g in gradients) * dtype.itemsize >= FUSED_BYTES:
                del step.waiting[dtype]
                self._allreduce_fused(step, [run for run, _ in waiting], gradients)

    def _allreduce_fused(self, step: _StepRun, runs: Sequence[_BucketRun], gradients: Sequence[Tensor]) -> None:
        fused = torch.cat(list(gradients)).div_(self._size)

        def write_back() -> None:
            torch._foreach_copy_(list(gradients), list(torch.split(fused, [g.numel() for g in gradients])))

        self._allreduce(step, runs, fused, write_back)

    def _allreduce(
        self, step: _StepRun, runs: Sequence[_BucketRun], values: Tensor, finish: Callable[[], None]
    ) -> None:
        """Start a plain all-reduce over DDP's own group, as DDP itself would (design, contract 8)."""
        if not values.is_sparse:
            step.figures.payload_bytes += self._allreduce_bytes(values)
        label = f"of {values.numel()} uncompressed elements"

        def arrived() -> None:
            finish()
            # Errors are kept or dropped for the whole step, so an Inf or NaN counts wherever it is.
            finite = not self._compresses or _is_finite(values)
            for run in runs:
                self._part_done(run, finite)

        self._start(step, label, "allreduce@flat", partial(comm.allreduce, self._group, values), arrived)

    def _allreduce_bytes(self, values: Tensor) -> int:
        return 2 * (self._size - 1) * values.numel() * values.element_size() // self._size

    # Any thread: from one step of a unit's program to the next.

    def _advance(self, run: _UnitRun) -> None:
        step = run.steps[run.position]
        if isinstance(step, Transfer):
            self._lanes[step.phase].issue(run.places[step.phase], partial(self._transfer, run, step))
        else:
            self._pool.submit(partial(self._compute, run, step), priority=isinstance(step, Decode))

    def _transfer(self, run: _UnitRun, transfer: Transfer) -> None:
        def arrived() -> None:
            transfer.finish()
            self._step_done(run)

        self._start(run.bucket.step, run.unit.label, transfer.task, transfer.start, arrived)

    def _start(
        self, step: _StepRun, unit: str, task: str, start: Callable[[], "Future[object]"], then: Callable[[], None]
    ) -> None:
        """Start a collective, unless the exchange has failed; ``then`` follows on a worker thread."""
        with self._lock:
            if self._failure is not None:
                return
            self._num_under_way += 1
        try:
            future = start()
        except Exception as error:
            self._fail(step, unit, task, error)
            self._ended(step)
        else:
            future.add_done_callback(self._pool.handing_over(partial(self._arrived, step, unit, task, then)))

    def _arrived(
        self, step: _StepRun, unit: str, task: str, then: Callable[[], None], future: "Future[object]"
    ) -> None:
        with self._failing(step, unit, task):
            future.value()
            then()
        self._ended(step)

    def _ended(self, step: _StepRun) -> None:
        with self._lock:
            self._num_under_way -= 1
            self._all_ended.notify_all()
        self._give_up(step)

    def _compute(self, run: _UnitRun, task: Encode | Decode) -> None:
        if self._failure is not None:
            return
        with self._failing(run.bucket.step, run.unit.label, task.task):
            started = time.perf_counter()
            task.run(run.bucket.step.context)
            seconds = time.perf_counter() - started
            figures = run.bucket.step.figures
            with self._lock:
                if isinstance(task, Encode):
                    figures.encode_seconds += seconds
                else:
                    figures.decode_seconds += seconds
            self._step_done(run)

    def _step_done(self, run: _UnitRun) -> None:
        run.position += 1
        if run.position < len(run.steps):
            self._advance(run)
            return
        last = run.steps[-1]
        assert isinstance(last, Decode)
        self._part_done(run.bucket, last.is_finite())

    def _part_done(self, bucket: _BucketRun, finite: bool) -> None:
        step = bucket.step
        with self._lock:
            step.finite &= finite
            bucket.num_open -= 1
            if bucket.num_open:
                return
        for gradient, flat in bucket.strided:
            gradient.copy_(flat.view(gradient.shape))
        with self._lock:
            step.num_open -= 1
            step_done = step.num_open == 0 and step.backward_ended is not None
        # The last bucket is held back until the whole step is settled, so that backward returns after it.
        if step_done:
            self._end_step(step)
            self._finish(next(b for b in step.buckets if b.is_last))
        if not bucket.is_last:
            self._finish(bucket)

    def _end_step(self, step: _StepRun) -> None:
        if step.finite:
            self.memory.commit()
        else:
            self.memory.rollback()
            self.stats.non_finite_steps += 1
        assert step.backward_ended is not None
        step.figures.wait_seconds = time.perf_counter() - step.backward_ended
        self.stats.steps += 1
        self.stats.last = step.figures
        self.stats.total.add(step.figures)
        self.step += 1
        self._run = None

    def _finish(self, bucket: _BucketRun) -> None:
        with self._lock:
            if bucket.delivered:
                return
            bucket.delivered = True
        bucket.done.set_result(bucket.buffer)

    def _deliver(self, done: "Future[Tensor]") -> Tensor:
        # What a callback raises reaches DDP, and so the caller of backward(), with its text.
        if self._failure is not None:
            raise self._failure
        return done.value()

    @contextmanager
    def _failing(self, step: _StepRun, unit: str, task: str) -> Iterator[None]:
        """Threads that nobody waits for have nowhere to raise: end the exchange instead."""
        try:
            yield
        except Exception as error:
            self._fail(step, unit, task, error)

    def _fail(self, step: _StepRun, unit: str, task: str, cause: Exception) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = ExchangeError(step.context.step, unit, task, cause)
                self._failure.__cause__ = cause
        self._give_up(step)

    def _give_up(self, step: _StepRun) -> None:
        """If the exchange has failed, let backward raise, once no collective is under way.

        Each ends within the group's timeout. One that ended later, after backward has raised and the user's script with
        it, would call back into an interpreter that is shutting down, which aborts the process.
        """
        with self._lock:
            if self._failure is None or self._num_under_way:
                return
            buckets = list(step.buckets)
        for bucket in buckets:
            self._finish(bucket)

    def _raise_failure(self) -> NoReturn:
        with self._lock:
            self._all_ended.wait_for(lambda: not self._num_under_way, self._timeout_seconds)
        assert self._failure is not None
        raise self._failure


def _gradients(bucket: GradBucket) -> list[Tensor]:
    """The bucket's gradients as DDP lays them out: with their parameters' strides, where these leave no gaps."""
    return [
        g
        if p.is_contiguous() or not torch.ops.aten.is_non_overlapping_and_dense(p)
        else g.as_strided(p.shape, p.stride())
        for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]


def _is_finite(values: Tensor) -> bool:
    if values.is_sparse:
        values = values.coalesce().values()
    if values.is_complex():
        values = torch.view_as_real(values)
    if not values.numel():
        return True
    low, high = torch.aminmax(values)  # one pass, and NaN comes through
    return bool(torch.isfinite(low) & torch.isfinite(high))
