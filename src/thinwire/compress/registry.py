"""Compressors by name: spec strings such as ``"topk(ratio=0.001)"`` to objects; ``str(compressor)`` is the way back."""

import ast
import difflib
from collections.abc import Iterator
from dataclasses import MISSING, fields

from thinwire.compress.base import Method

_KNOWN: dict[str, type[Method]] = {}


def register(cls: type[Method]) -> type[Method]:
    """Make a compressor class known under its ``id``; usable as a decorator.

    Raises:
        ValueError: if the id is taken by another class, or is no identifier.
    """
    if not cls.id.isidentifier():
        raise ValueError(f"compressor id {cls.id!r} is not an identifier; use letters, digits and underscores")
    if _KNOWN.setdefault(cls.id, cls) is not cls:
        raise ValueError(f"compressor id {cls.id!r} is taken by {_KNOWN[cls.id].__qualname__}; choose another id")
    return cls


def known() -> Iterator[type[Method]]:
    """The registered compressor classes, by id."""
    return (cls for _, cls in sorted(_KNOWN.items()))


def signature(cls: type[Method]) -> str:
    """How a spec of this class is written, with every setting and its default: ``topk(ratio=0.01, values=fp16)``."""
    settings = [f.name if f.default is MISSING else f"{f.name}={f.default}" for f in fields(cls)]
    return f"{cls.id}({', '.join(settings)})" if settings else cls.id


def parse(spec: str | Method) -> Method:
    """Make a compressor from its spec string: ``"onebit"``, ``"topk(ratio=0.01, values=fp32)"``.

    Values are Python numbers, ``true``/``false``, or words (with or without quotes). A compressor object is
    returned as it is.

    Raises:
        ValueError: if the spec cannot be read, the name or a setting is unknown, or a value is not allowed; the
            message lists what is.
    """
    if isinstance(spec, Method):
        return spec
    if not isinstance(spec, str):
        raise ValueError(f"a compressor is given as a spec string or an object, not {type(spec).__name__}: {spec!r}")
    name, settings = _read(spec)
    if name not in _KNOWN:
        near = difflib.get_close_matches(name.lower(), _KNOWN, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise ValueError(f"unknown compressor {name!r} in {spec!r}{meant}; known: {', '.join(sorted(_KNOWN))}")
    cls = _KNOWN[name]
    allowed = {f.name for f in fields(cls)}
    if unknown := settings.keys() - allowed:
        raise ValueError(f"{spec!r}: unknown setting {', '.join(sorted(unknown))}; write {signature(cls)}")
    try:
        return cls(**settings)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{spec!r}: {error}; write {signature(cls)}") from error


def _read(spec: str) -> tuple[str, dict[str, object]]:
    try:
        node = ast.parse(spec.strip(), mode="eval").body
    except (SyntaxError, ValueError):  # ValueError: a null byte
        node = None
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        settings = {k.arg: _value(k.value) for k in node.keywords if k.arg is not None}
        if not node.args and len(settings) == len(node.keywords) and _MALFORMED not in settings.values():
            return node.func.id, settings
    raise ValueError(
        f"cannot read compressor spec {spec!r}; write name or name(setting=value, ...), like topk(ratio=0.01)"
    )


_MALFORMED = object()


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Name):  # a bare word; nan and inf are numbers, for the settings' own range checks
        return {"true": True, "false": False, "none": None, "nan": float("nan"), "inf": float("inf")}.get(
            node.id, node.id
        )
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _MALFORMED
