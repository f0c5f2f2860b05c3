"""What the user of ``attach`` can set, and the strategy that follows from it."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from thinwire.compress import Method
from thinwire.strategy import SCHEMES, Choice, Place, Strategy, choose_scheme, flat_option


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings of an exchange; :func:`thinwire.attach` documents them."""

    scheme: str | None = None
    error_feedback: bool | None = None
    min_numel: int = 1024
    compress_vectors: bool = False
    exclude: Sequence[str] = ()
    chunk_bytes: int = 4 << 20
    seed: int = 0
    num_threads: int | None = None
    start_step: int = 0

    def __post_init__(self) -> None:
        if self.scheme is not None and self.scheme not in SCHEMES:
            raise ValueError(f"scheme={self.scheme!r} is unknown; allowed: {', '.join(SCHEMES)}, or None to choose one")
        if self.error_feedback not in (None, True, False):
            raise ValueError(f"error_feedback={self.error_feedback!r}; allowed: True, False, or None for the usual")
        for name, lowest in (("min_numel", 0), ("chunk_bytes", 1024), ("seed", 0), ("start_step", 0)):
            _check_integer(name, getattr(self, name), lowest)
        if self.num_threads is not None:
            _check_integer("num_threads", self.num_threads, 1)
        if isinstance(self.exclude, str | None) or not all(isinstance(pattern, str) for pattern in self.exclude):
            raise ValueError(f"exclude={self.exclude!r}; give a list of name patterns, like ['embedding.*']")

    def check_beside_strategy(self) -> None:
        """Refuse what a given strategy decides.

        Raises:
            ValueError: naming the setting.
        """
        for name in ("scheme", "exclude", "min_numel", "compress_vectors"):
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default:
                raise ValueError(f"{name}={value!r} has no effect beside strategy=..., which decides for each gradient")

    @property
    def max_numel(self) -> int:
        """Most elements of a chunk."""
        return self.chunk_bytes // 4

    def threads(self) -> int:
        """Worker threads: as set, or half of the cores that this rank can call its own, at least one and at most 4."""
        if self.num_threads is not None:
            return self.num_threads
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return max(1, min(4, len(os.sched_getaffinity(0)) // max(ranks_here, 1) // 2))


def _check_integer(name: str, value: object, lowest: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise ValueError(f"{name}={value!r}; allowed: whole numbers from {lowest}")


def strategy_by_name(
    parameters: Mapping[str, nn.Parameter],
    compressors: Mapping[str, Method],
    settings: Settings,
    world_size: int,
) -> Strategy:
    """The strategy that gives every gradient worth compressing the compressor of the first pattern that its name fits.

    Left out, and all-reduced as they are: gradients that fit no pattern, those under ``min_numel`` elements, vectors
    (unless ``compress_vectors``), those whose name matches a pattern of ``exclude``, those of complex parameters, and
    those whose shape the compressor cannot make smaller.

    Args:
        parameters: by name.
        compressors: by pattern of names; ``*`` fits all.
        settings: what else the user has set.
        world_size: number of ranks.
    """
    schemes = {pattern: _scheme(compressor, settings, world_size) for pattern, compressor in compressors.items()}

    def choice(name: str, parameter: nn.Parameter) -> Choice:
        pattern = next((pattern for pattern in compressors if fnmatchcase(name, pattern)), None)
        if pattern is None or _left_out(name, parameter, settings):
            return Choice(numel=parameter.numel())
        compressor = compressors[pattern]
        if not compressor.fits(parameter.shape):
            return Choice(numel=parameter.numel())
        if compressor.id == "none" and len(compressors) > 1:  # the scheme is meant for the others
            return Choice(numel=parameter.numel())
        option = flat_option(schemes[pattern], Place.CPU, compressed=compressor.id != "none")
        return Choice(numel=parameter.numel(), option=option, compressor=str(compressor))

    return Strategy(world_size=world_size, gradients={n: choice(n, p) for n, p in parameters.items()})


def _scheme(compressor: Method, settings: Settings, world_size: int) -> str:
    if settings.scheme is not None:
        return settings.scheme
    typical = 1 << 20
    chosen = choose_scheme(
        reducible=compressor.reducible,
        payload_bytes_per_element=compressor.average_nbytes((typical,)) / typical,
        world_size=world_size,
    )
    return chosen if chosen in (compressor.schemes or SCHEMES) else compressor.schemes[0]


def _left_out(name: str, parameter: nn.Parameter, settings: Settings) -> bool:
    return (
        parameter.numel() < max(settings.min_numel, 1)
        or (parameter.dim() < 2 and not settings.compress_vectors)
        or not parameter.is_floating_point()
        or any(fnmatchcase(name, pattern) for pattern in settings.exclude)
    )


def check_patterns(patterns: Iterable[object], names: Iterable[str]) -> None:
    """Refuse patterns that fit no parameter: most likely they are misspelt.

    Raises:
        ValueError: naming the pattern and some names.
    """
    names = list(names)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ValueError(f"{pattern!r} is no pattern of parameter names; write one like '*embedding*'")
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            raise ValueError(f"pattern {pattern!r} fits no parameter of the wrapped module; there are {some}")


def check_executable(
    strategy: Strategy,
    compressors: Mapping[str, Method],
    shapes: Mapping[str, Sequence[int]],
    settings: Settings,
) -> None:
    """Refuse what the exchange cannot run.

    Args:
        strategy: what is to be done with each gradient.
        compressors: by spec.
        shapes: of the gradients, by name.
        settings: what else the user has set.

    Raises:
        ValueError: naming the gradient, and what to change.
    """
    for name, choice in strategy.gradients.items():
        compressor = compressors[choice.compressor]
        if any(task.place is Place.GPU for task in choice.option.tasks):
            raise ValueError(f"{name}: {str(choice.option)!r} computes on a GPU; this release needs ...@cpu")
        if settings.error_feedback and choice.option.compresses and compressor.expands:
            raise ValueError(
                f"{name}: error_feedback=True does not go with {compressor}, which drops more than there is, so that "
                "errors would grow without bound; leave error_feedback at None"
            )
        if settings.error_feedback is False and choice.option.compresses and compressor.needs_errors:
            raise ValueError(
                f"{name}: error_feedback=False does not go with {compressor}, which sends what it has kept; "
                "leave error_feedback at None"
            )
        if choice.option.sums_payloads and not compressor.reducible:
            raise ValueError(
                f"{name}: {str(choice.option)!r} adds payloads up on the way, "
                f"but those of {compressor} cannot be added; use the scheme allgather or alltoall"
            )
        if choice.option.compresses and not compressor.fits(shapes[name]):
            raise ValueError(f"{name}: {compressor} cannot make {tuple(shapes[name])} smaller; give it 'none'")
        if choice.option.refines and not compressor.schemes:
            raise ValueError(
                f"{name}: {str(choice.option)!r} has a second round, which {compressor} does not; use another scheme"
            )
        if compressor.schemes and choice.option not in [flat_option(s, Place.CPU) for s in compressor.schemes]:
            raise ValueError(
                f"{name}: {compressor} does not go with {str(choice.option)!r}; its schemes are "
                f"{', '.join(compressor.schemes)}"
            )
        num_chunks = math.ceil(choice.numel / settings.max_numel)
        smallest = choice.numel // max(num_chunks, 1)
        if choice.option.divides and choice.numel and smallest < strategy.world_size:
            raise ValueError(
                f"{name}: a part of {smallest} elements cannot be divided among {strategy.world_size} ranks; "
                f"set min_numel to at least {strategy.world_size}, or exclude=[{name!r}], or a larger chunk_bytes"
            )
