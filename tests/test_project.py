"""Laws about the project itself: which way imports go, what is public, what is pinned."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import thinwire

ROOT = Path(__file__).parents[1]
PACKAGE = Path(thinwire.__file__).parent

MAY_IMPORT: dict[str, set[str]] = {
    "kernels": set(),
    "compress": {"kernels"},
    "strategy": set(),
    "comm": {"kernels", "compress", "strategy"},
    "exchange": {"kernels", "compress", "strategy", "comm"},
    "lab": set(),
    "report": {"strategy"},
    "jobs": {"lab"},
    "demo": {"__init__", "kernels", "compress", "strategy", "comm", "exchange", "lab", "report", "jobs"},
    "bench": {"__init__", "kernels", "compress", "strategy", "comm", "exchange", "lab", "jobs", "demo"},
    "__init__": {"compress", "strategy", "exchange"},
    "__main__": {"cli"},
    "cli": {"compress", "bench", "demo", "jobs", "lab"},
}
"""For each part of the package, the other parts that it may know."""


def part(module_name: str) -> str:
    """``thinwire.comm.groups`` belongs to ``comm``."""
    return [*module_name.split("."), "__init__"][1]


def imported_modules(path: Path) -> set[str]:
    """The modules of this package that a file imports, at its top or inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            if node.module == "thinwire":  # a part, or a name of the package itself
                found |= {f"thinwire.{alias.name}" for alias in node.names if alias.name != "__version__"}
            elif node.module is not None:
                found.add(node.module)
    return {name for name in found if name.split(".")[0] == "thinwire"}


FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = sorted(
    {"thinwire"}
    | {module.name for module in pkgutil.walk_packages([str(PACKAGE)], "thinwire.")} - {"thinwire.__main__"}
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in MAY_IMPORT, f"say in MAY_IMPORT what {own} may import"
    others = {part(name) for name in imported_modules(path)} - {own}
    assert others <= MAY_IMPORT[own]


def test_the_walk_sees_imports() -> None:
    assert "thinwire.lab.shape" in imported_modules(PACKAGE / "lab" / "lab.py")
    assert {part(name) for name in imported_modules(PACKAGE / "cli.py")} >= {"compress", "demo", "lab"}


@pytest.mark.parametrize("name", ["thinwire", "thinwire.cli", "thinwire.lab", "thinwire.strategy"])
def test_light_parts_do_not_import_torch(name: str) -> None:
    script = f"import sys, {name}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


@pytest.mark.parametrize("name", [name for name in MODULES if name != "thinwire.lab.namespaces"])
def test_public_names_exist_once_and_say_what_they_are(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    public = getattr(module, "__all__", [])
    assert len(public) == len(set(public))
    for public_name in public:
        value = getattr(module, public_name)
        if inspect.isclass(value) or inspect.isfunction(value):
            # A dataclass without a docstring gets its signature as one.
            written = value.__doc__ and not value.__doc__.startswith(f"{public_name}(")
            assert written, f"{name}.{public_name} has no docstring"


def test_every_package_lists_its_public_names() -> None:
    for path in PACKAGE.glob("*/__init__.py"):
        module = importlib.import_module(f"thinwire.{path.parent.name}")
        own = [name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)]
        assert set(own) == set(getattr(module, "__all__", [])), path


def test_every_requirement_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["dev"], *extras["bench"], *extras["report"]]
    wanted = {re.match(r"[\w-]+", requirement)[0].lower() for requirement in requirements}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.lower().split("==") for line in lines if not line.startswith("#"))
    assert wanted - {project["name"]} <= pins.keys()
    assert not [name for name in pins if name.startswith(("nvidia", "triton"))]
