"""Collectives in an order that every rank shares, however their inputs become ready."""

import threading
from collections.abc import Callable


class Lane:
    """Issues the collectives of one process group in the order in which their places were reserved.

    A process group matches collectives by order alone: if two ranks issue the same two in different orders, they mix up
    or hang. Places are reserved in DDP's bucket order, which is the same on all ranks; inputs become ready in
    whatever order threads finish. A lane holds back what is ready too early (design, contract 4).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reserved = 0
        self._next = 0
        self._ready: dict[int, Callable[[], None]] = {}

    def reserve(self) -> int:
        """Take the next place in the order. Called by one thread, in the same order on all ranks."""
        self._reserved += 1
        return self._reserved - 1

    def issue(self, place: int, start: Callable[[], None]) -> None:
        """Call ``start`` once all earlier places have been started, now or from a later call. Any thread.

        ``start`` begins a collective without waiting for it, and must not raise.
        """
        with self._lock:
            self._ready[place] = start
            while (waiting := self._ready.pop(self._next, None)) is not None:
                self._next += 1
                waiting()
