"""Threads that compute beside backward."""

import itertools
import queue
import threading
from collections.abc import Callable


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

    def close(self) -> None:
        """End the threads once all submitted work is done, and wait for that."""
        for _ in self._threads:
            self._queue.put((1 << 62, next(self._count), None))
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (work := self._queue.get()[2]) is not None:
            work()
            # What work refers to, process groups too, must not end its days in this thread.
            del work
