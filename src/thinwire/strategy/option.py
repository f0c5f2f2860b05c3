"""An option: the program that one unit runs through, from a worker's gradient to the mean of all workers'."""

from dataclasses import dataclass

from thinwire.strategy.tasks import Compute, Place, Routine, Task


@dataclass(frozen=True, slots=True)
class Option:
    """A list of tasks that leaves every rank with the mean; written ``encode@cpu > allgather@flat > decode@cpu``.

    Raises:
        ValueError: if the tasks do not follow from each other: what is decoded was encoded, parts that a divisible
            scheme left on the ranks are brought together again, payloads are decoded at the end.
    """

    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        encoded = False
        divided: list[Place] = []
        summed: set[Place] = set()
        for task in self.tasks:
            if isinstance(task.action, Compute):
                if encoded == (task.action is Compute.ENCODE):
                    raise self._invalid(task, "it is encoded already" if encoded else "nothing is encoded here")
                if task.action is Compute.REFINE:
                    if divided or not summed:
                        raise self._invalid(task, "it takes the sum of a first round's payloads")
                    summed.clear()  # a second round sums anew
                else:
                    encoded = not encoded
                continue
            if task.action is Routine.ALLGATHER and divided:
                if divided.pop() != task.place:
                    raise self._invalid(task, "a second step runs where its first step ran")
                continue
            if task.place in summed:
                raise self._invalid(task, f"the gradients of {task.place} are added up already")
            summed.add(task.place)
            if task.action.divides:
                if task.action is Routine.ALLTOALL and not encoded:
                    raise self._invalid(task, "alltoall carries payloads; encode first, or use reduce_scatter")
                divided.append(task.place)
            elif task.action is Routine.ALLGATHER and not encoded:
                raise self._invalid(task, "allgather carries payloads; encode first, or use allreduce")
        if not self.routines:
            raise ValueError(f"option {str(self)!r} does not communicate; the shortest one is allreduce@flat")
        if encoded or divided:
            missing = "decode" if encoded else "the allgather of its parts"
            raise ValueError(f"option {str(self)!r} ends too early; {missing} is missing")

    def _invalid(self, task: Task, why: str) -> ValueError:
        return ValueError(f"option {str(self)!r}: {task} is out of place; {why}")

    @property
    def routines(self) -> tuple[Task, ...]:
        """The communication tasks, in order."""
        return tuple(t for t in self.tasks if isinstance(t.action, Routine))

    @property
    def num_encodes(self) -> int:
        """How often a unit is encoded on its way; each time with an error memory of its own."""
        return sum(t.action is Compute.ENCODE for t in self.tasks)

    @property
    def compresses(self) -> bool:
        """Whether anything is encoded."""
        return self.num_encodes > 0

    @property
    def refines(self) -> bool:
        """Whether there is a second round, which takes a compressor made for it."""
        return any(t.action is Compute.REFINE for t in self.tasks)

    @property
    def divides(self) -> bool:
        """Whether any step leaves each rank with a part."""
        return any(t.action.divides for t in self.tasks if isinstance(t.action, Routine))

    @property
    def sums_payloads(self) -> bool:
        """Whether payloads are added up on the way, which takes a reducible compressor."""
        encoded = False
        for task in self.tasks:
            if isinstance(task.action, Compute):
                encoded = task.action is not Compute.DECODE
            elif encoded and task.action.sums:
                return True
        return False

    def __str__(self) -> str:
        return " > ".join(map(str, self.tasks))

    @classmethod
    def parse(cls, text: str) -> "Option":
        """Read what ``str`` writes.

        Raises:
            ValueError: naming the task that cannot be read, or why the tasks do not fit together.
        """
        return cls(tuple(Task.parse(part) for part in text.split(">")))


UNCOMPRESSED = Option((Task(Routine.ALLREDUCE, Place.FLAT),))
"""The backend's plain all-reduce: what DDP itself does."""

_FLAT_SCHEMES = {
    "allreduce": "encode > allreduce > decode",
    "allreduce_twice": "encode > allreduce > refine > allreduce > decode",
    "allgather": "encode > allgather > decode",
    "alltoall": "encode > alltoall > decode > encode > allgather > decode",
    "reduce_scatter": "encode > reduce_scatter > allgather > decode",
}

SCHEMES = tuple(_FLAT_SCHEMES)
"""Names of the flat schemes for compressed units; ``alltoall`` compresses both ways, each rank serving its part;
``allreduce_twice`` is for what needs the sum of a first round to make the payloads of a second one (Power-SGD)."""


def flat_option(scheme: str, processor: Place, *, compressed: bool = True) -> Option:
    """The flat option that ``scheme`` names, with every encode and decode on ``processor``.

    Args:
        scheme: one of :data:`SCHEMES`.
        processor: ``Place.CPU`` or ``Place.GPU``.
        compressed: False leaves out encoding and decoding; only ``allreduce`` and ``reduce_scatter`` can do without.

    Raises:
        ValueError: for an unknown scheme, or one that needs payloads.
    """
    if scheme not in _FLAT_SCHEMES:
        raise ValueError(f"unknown scheme {scheme!r}; allowed: {', '.join(SCHEMES)}")
    words = _FLAT_SCHEMES[scheme].split(" > ")
    if not compressed:
        words = [w for w in words if w not in set(Compute)]
    return Option(tuple(Task.parse(f"{w}@{processor if w in set(Compute) else Place.FLAT}") for w in words))


def choose_scheme(*, reducible: bool, payload_bytes_per_element: float, world_size: int) -> str:
    """The scheme that suits a compressor when the user names none.

    Payloads that can be summed go through an all-reduce. Others through an all-gather, which compresses only once,
    as long as the n payloads that every rank decodes come to no more than one byte per element (a quarter of the
    gradient itself); else through the two-way all-to-all, whose traffic does not grow with n. Between two ranks both
    send as much.
    """
    if reducible:
        return "allreduce"
    return "allgather" if world_size <= 2 or world_size * payload_bytes_per_element <= 1.0 else "alltoall"
