"""A strategy: an option and a compressor for every gradient of a model, and the file it is kept in."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, model_validator

from thinwire.strategy.option import UNCOMPRESSED, Option

_OptionField = Annotated[
    Option,
    BeforeValidator(lambda v: Option.parse(v) if isinstance(v, str) else v),
    PlainSerializer(str, return_type=str),
]


class Choice(BaseModel):
    """What happens to one gradient."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    numel: int = Field(ge=0)
    option: _OptionField = UNCOMPRESSED
    compressor: str = "none"
    """A spec string; "none" exactly where the option does not compress."""

    @model_validator(mode="after")
    def _compressor_fits_option(self) -> "Choice":
        if self.option.compresses == (self.compressor == "none"):
            raise ValueError(
                f"option {str(self.option)!r} {'compresses' if self.option.compresses else 'does not compress'}, "
                f"but the compressor is {self.compressor!r}"
            )
        return self


class Strategy(BaseModel):
    """An option for every gradient of a model, by parameter name; immutable.

    The file is JSON that a person can read and edit::

        {"format": "thinwire-strategy", "version": 1, "world_size": 2,
         "gradients": {"layer.weight": {"numel": 589824, "option": "encode@cpu > allgather@flat > decode@cpu",
                                        "compressor": "topk(ratio=0.01)"}}}
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["thinwire-strategy"] = "thinwire-strategy"
    version: Literal[1] = 1
    world_size: int = Field(ge=1)
    gradients: Mapping[str, Choice]

    def check_fits(self, numels: Mapping[str, int], world_size: int) -> None:
        """Refuse a model or world that this strategy was not made for.

        Args:
            numels: number of elements of every trainable parameter, by name.
            world_size: number of ranks that exchange gradients.

        Raises:
            ValueError: naming the parameters that are missing, unknown or of another size.
        """
        if self.world_size != world_size:
            raise ValueError(f"the strategy is for {self.world_size} ranks, but {world_size} exchange gradients here")
        missing = numels.keys() - self.gradients.keys()
        unknown = self.gradients.keys() - numels.keys()
        resized = [
            f"{name} ({self.gradients[name].numel} elements in the strategy, {numel} in the model)"
            for name, numel in numels.items()
            if name in self.gradients and self.gradients[name].numel != numel
        ]
        for problem, names in (
            ("has nothing for", missing),
            ("names unknown", unknown),
            ("has other sizes for", resized),
        ):
            if names:
                raise ValueError(f"the strategy {problem} parameters: {_some(sorted(names))}; plan it for this model")

    def dumps(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(mode="json"), indent=1)

    def save(self, path: str | Path) -> None:
        """Write the file."""
        Path(path).write_text(self.dumps() + "\n")

    @classmethod
    def loads(cls, text: str) -> "Strategy":
        """Read what :meth:`dumps` writes.

        Raises:
            ValueError: naming each field that is wrong, and why.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:5])
            raise ValueError(f"not a valid strategy: {problems}") from None

    @classmethod
    def load(cls, path: str | Path) -> "Strategy":
        """Read a strategy file.

        Raises:
            ValueError: as :meth:`loads`, naming the file.
            OSError: if it cannot be opened.
        """
        try:
            return cls.loads(Path(path).read_text())
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _some(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
