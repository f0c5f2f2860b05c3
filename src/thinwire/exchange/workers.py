"""Threads that compute beside backward."""

import itertools
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class WorkerPool:
    """A few daemon threads that run submitted work, smallest priority first, else in order of submission.

    Kernels release the GIL, so the threads run beside backward and beside each other. Work must not raise.
    """

    def __init__(self, num_threads: int) -> None:
        self._queue: queue.PriorityQueue[tuple[int, int, Callable[[], None] | None]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._threads = [
            threading.Thread(target=self._serve, name=f"thinwire-worker-{i}", daemon=True) for i in range(num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None], priority: int) -> None:
        """Run ``work`` on one of the threads."""
        self._queue.put((priority, next(self._count), work))

    def handing_over(self, work: Callable[[T], None]) -> Callable[[T], None]:
        """A callback, for one call by a thread that is not ours, that has ``work`` done here with its argument.

        Such threads belong to a process group, and end with it. So nothing is done there: what touches Python when the
        interpreter shuts down aborts the process, and if the last reference to the group were dropped there, its
        thread would wait for itself.
        """
        held = [work]
        return lambda argument: self.submit(partial(held.pop(), argument), priority=0)

    def close(self) -> None:
        """End the threads once all submitted work is done, and wait for that."""
        for _ in self._threads:
            self._queue.put((1 << 62, next(self._count), None))
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        # For a thread that is just leaving a callback of :meth:`handing_over`, and wants the GIL once more.
        time.sleep(0.01)

    def _serve(self) -> None:
        while (work := self._queue.get()[2]) is not None:
            work()
            # What work refers to, process groups too, must not end its days in this thread.
            del work
