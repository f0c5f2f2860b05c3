"""Threads that compute beside backward."""

import itertools
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


EXIT_SECONDS = 10.0
"""How long the end of a process waits for collectives that are under way: until peers have answered or are gone."""

LEAVING_SECONDS = 0.1
"""What a thread of a process group is given to let the tensors of an ended collective go, which takes Python once more.
Nothing tells when it has; it takes microseconds if a core is free."""


class WorkerPool:
    """A few daemon threads that run submitted work, smallest priority first, else in order of submission.

    Kernels release the GIL, so the threads run beside backward and beside each other. Work must not raise.
    """

    def __init__(self, num_threads: int) -> None:
        self._queue: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._num_open = 0  # work submitted and callbacks handed over
        self._all_done = threading.Condition()
        self._has_handed_over = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"thinwire-worker-{i}", daemon=True) for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None], priority: int) -> None:
        """Run ``work`` on one of the threads."""
        self._opened()
        self._queue.put((priority, next(self._count), work))

    def handing_over(self, work: Callable[[T], None]) -> Callable[[T], None]:
        """A callback, for one call by a thread that is not ours, that has ``work`` done here with its argument.

        Such threads belong to a process group, and end with it. So nothing is done there: what touches Python when the
        interpreter shuts down aborts the process, and if the last reference to the group were dropped there, its
        thread would wait for itself.
        """
        self._opened()
        self._has_handed_over = True
        return _HandOver(self, work)

    def close(self) -> None:
        """Wait until all work is done and foreign threads have left their callbacks, and end the threads.

        Not for ever: where a peer hangs, the process group's timeout may be half an hour away.
        """
        if threading.current_thread() not in self._threads:
            with self._all_done:
                self._all_done.wait_for(lambda: not self._num_open, EXIT_SECONDS)
        for _ in self._threads:
            self._queue.put((1 << 62, next(self._count), None))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._has_handed_over:
            time.sleep(LEAVING_SECONDS)

    def _opened(self) -> None:
        with self._all_done:
            self._num_open += 1

    def _done(self) -> None:
        with self._all_done:
            self._num_open -= 1
            self._all_done.notify_all()

    def _serve(self) -> None:
        while (work := self._queue.get()[2]) is not None:
            work()
            # What work refers to, process groups too, must not end its days in this thread.
            del work
            self._done()


class _HandOver(Generic[T]):
    """See :meth:`WorkerPool.handing_over`."""

    def __init__(self, pool: WorkerPool, work: Callable[[T], None]) -> None:
        self._pool = pool
        self._work = [work]

    def __call__(self, argument: T) -> None:
        self._pool.submit(partial(self._work.pop(), argument), priority=0)

    def __del__(self) -> None:
        # A foreign thread needs Python twice: to call, and to let the callback go. Only now has it left.
        self._pool._done()
