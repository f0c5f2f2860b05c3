"""The model that is measured: a built-in one, or a function in a user's file."""

import ast
import hashlib
import importlib.util
import sys
from pathlib import Path
from typing import cast

from torch import nn

from thinwire.bench.models import BUILT_IN, Workload

CONTRACT = (
    "the function takes no arguments and returns (model, batch, loss): an nn.Module; batch(step, rank), which returns "
    "(inputs, targets); and loss(model(inputs), targets), which returns a scalar"
)


def check_model(model: str) -> None:
    """Refuse what no workload can be made of, without running a user's file.

    Raises:
        ValueError: naming what there is.
    """
    if model in BUILT_IN:
        return
    file, name = _split(model)
    if not file.is_file():
        raise ValueError(f"--model {model}: there is no file {file}; {_allowed()}")
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        raise ValueError(f"--model {model}: {file} is no Python ({error})") from error
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    if name not in functions:
        raise ValueError(f"--model {model}: {file} has no function {name!r}; it has {', '.join(functions) or 'none'}")


def make_workload(model: str, batch_size: int | None) -> Workload:
    """Make the model with its data anew.

    Args:
        model: the name of a built-in one, or ``path/to/file.py:function``.
        batch_size: on each worker, for built-in models only; None: the model's own.

    Raises:
        ValueError: if a user's function does not keep the contract.
    """
    if model in BUILT_IN:
        built_in = BUILT_IN[model]
        return built_in.make(built_in.batch_size if batch_size is None else batch_size)
    file, name = _split(model)
    made = getattr(_module(file), name)()
    if not (isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], nn.Module)):
        raise ValueError(f"{model} returned {type(made).__name__}; {CONTRACT}")
    return cast(Workload, made)


def version_of(model: str) -> str | None:
    """A digest of a user's file, which changes with it; None for built-in models."""
    return None if model in BUILT_IN else hashlib.blake2b(_split(model)[0].read_bytes(), digest_size=4).hexdigest()


def _split(model: str) -> tuple[Path, str]:
    file, colon, name = model.rpartition(":")
    if not colon or not file.endswith(".py") or not name.isidentifier():
        raise ValueError(f"--model is {model!r}; {_allowed()}")
    return Path(file).resolve(), name


def _allowed() -> str:
    return f"allowed: {', '.join(BUILT_IN)}, or path/to/file.py:function"


def _module(file: Path) -> object:
    """A user's file as a module, once; it finds its neighbours, as a script would."""
    name = f"thinwire_bench_{file.stem}"
    if name not in sys.modules:
        sys.path.insert(0, str(file.parent))
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
