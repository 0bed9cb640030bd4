"""The plan of the house: imports point one way, files stay small, public names are explained, settings are values."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from specjax.decoding.decoder import Decoder
from specjax.decoding.settings import DraftConfig, SamplerConfig
from specjax.models.protocol import FeatureRequest
from specjax.models.qwen3_5 import MoEConfig, Qwen35Config, Qwen35MTP, Qwen35Target, hybrid_layer_types
from specjax.runtime.options import GenerateOptions

ROOT = Path(__file__).parents[1]
PACKAGES = ("pallas_kernels", "checkpoints", "specjax")
MAX_LINES = 400

# What each part may import of this project; the longest matching name applies. Upper parts may import everything.
MAY_IMPORT = {
    "pallas_kernels": {"pallas_kernels"},
    "specjax.dims": set(),
    "specjax.mesh": {"specjax.mesh", "pallas_kernels"},
    "specjax.mesh.plan": {"specjax.mesh", "pallas_kernels", "checkpoints"},  # used in loading alone
    "specjax.state": {"specjax.state", "specjax.mesh", "pallas_kernels"},
    "specjax.layers": {"specjax.layers", "specjax.state", "specjax.mesh", "pallas_kernels"},
    "specjax.models": {
        "specjax.models",
        "specjax.layers",
        "specjax.state",
        "specjax.mesh",
        "checkpoints",
        "pallas_kernels",
    },
    "specjax.decoding": {
        "specjax.decoding",
        "specjax.models.protocol",
        "specjax.state",
        "specjax.mesh",
        "pallas_kernels",
    },
    "checkpoints": {"checkpoints", "pallas_kernels"},
}
KERNELS_NEED = {"jax", "jaxlib", "jaxtyping", "numpy", "jax_triton", "triton"}


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the packages by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def path_of(name: str) -> Path:
    path = ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def imported(statement: ast.AST) -> Iterator[str]:
    """Dotted names that a statement imports; of `from package import module`, the module."""
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        assert statement.level == 0, "imports are absolute"
        for alias in statement.names:
            name = f"{statement.module}.{alias.name}"
            yield name if name in modules() else str(statement.module)


def below(name: str, parents: set[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def part_of(name: str) -> str | None:
    """The entry of `MAY_IMPORT` that a module belongs to."""
    return max((part for part in MAY_IMPORT if below(name, {part})), key=len, default=None)


def test_imports_point_one_way() -> None:
    wrong = []
    for name, tree in modules().items():
        part = part_of(name)
        if part is None:
            continue
        for statement in ast.walk(tree):
            for other in imported(statement):
                if other.split(".")[0] in PACKAGES and not below(other, MAY_IMPORT[part]):
                    wrong.append(f"{name} imports {other}")
    assert not wrong, "\n".join(wrong)


def test_rounds_are_started_by_the_engine_alone() -> None:
    """Whatever generates is requests in its seats, but for a checker that needs the bare loop."""
    starts = {"decode_chunk", "start_rows"}
    allowed = {"specjax.runtime.engine", "specjax.runtime.rounds", "specjax.runtime.programs"}
    users = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and starts & {alias.name for alias in node.names}
    }
    assert {name for name in users if not below(name, {"specjax.decoding"})} == {
        *allowed,
        "specjax.analysis.lossless.texts",
    }


def run_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Everything below a node, in functions too, but not what is there for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield child
        yield from run_statements(child)


def loaded_with(name: str) -> set[str]:
    """Modules that a module imports at any time, and the packages that Python runs on the way to them."""
    others = {other for node in run_statements(modules()[name]) for other in imported(node) if other in modules()}
    parents = {other.rsplit(".", depth)[0] for other in others for depth in range(1, other.count(".") + 1)}
    return (others | {parent for parent in parents if not below(name, {parent})}) - {name}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """What is taken away is imported by nothing, or imports nothing, of what is left; a circle stays."""
    left = {name: loaded_with(name) for name in modules()}
    while leaves := [name for name, others in left.items() if not others & left.keys()]:
        for name in leaves:
            del left[name]
    while roots := left.keys() - set().union(*left.values()):
        for name in roots:
            del left[name]
    assert not left, "\n".join(f"{name} imports {sorted(others & left.keys())}" for name, others in left.items())


def test_lower_parts_exist() -> None:
    """A part that was renamed would be checked no more."""
    assert all(part in modules() for part in MAY_IMPORT)


def test_kernels_know_jax_and_nothing_else() -> None:
    allowed = KERNELS_NEED | {"pallas_kernels"} | sys.stdlib_module_names
    for name, tree in modules().items():
        if below(name, {"pallas_kernels"}):
            tops = {other.split(".")[0] for statement in ast.walk(tree) for other in imported(statement)}
            assert tops <= allowed, f"{name} imports {sorted(tops - allowed)}"


DERIVED = {"specjax.evaluation.beam", "specjax.evaluation.lm_eval.harness"}
"""Modules whose classes derive from one of an extra."""


def test_modules_import_no_more_than_the_core_dependencies() -> None:
    """What an extra brings is imported inside the functions that need it, except by training, serving, and
    what derives from a class of it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[<>=\[]", requirement)[0] for requirement in project["dependencies"]}
    names = {"orbax-checkpoint": "orbax"}
    allowed = (
        {names.get(name, name) for name in core} | set(PACKAGES) | sys.stdlib_module_names | {"ml_dtypes", "jaxlib"}
    )
    for name, tree in modules().items():
        if below(name, {"specjax.training", "specjax.serving", *DERIVED}):
            continue
        tops = {other.split(".")[0] for statement in tree.body for other in imported(statement)}
        assert tops <= allowed, f"{name} imports {sorted(tops - allowed)}"


def test_files_are_small() -> None:
    long = {name: lines for name in modules() if (lines := len(path_of(name).read_text().splitlines())) > MAX_LINES}
    assert not long


Definition = ast.FunctionDef | ast.ClassDef


def definitions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Public functions, classes and methods by name; Linen's `setup` is not a thing to call."""
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_") and node.name != "setup":
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{prefix}{node.name}.")


def inherited_methods() -> set[str]:
    """Methods of all protocols and base classes: what these explain, other classes need not explain again."""
    classes = [node for tree in modules().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base).rpartition(".")[2] for node in classes for base in node.bases}
    return {
        method.name
        for node in classes
        if node.name in bases or "Protocol" in map(ast.unparse, node.bases)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
    }


def is_property(node: Definition) -> bool:
    return any(ast.unparse(decorator) in ("property", "cached_property") for decorator in node.decorator_list)


def test_public_names_have_docstrings() -> None:
    """Properties may go without one where the name says it all."""
    explained = inherited_methods()
    missing = [name for name, tree in modules().items() if tree.body and not ast.get_docstring(tree)]
    missing += [
        f"{name}.{inner}"
        for name, tree in modules().items()
        for inner, node in definitions(tree)
        if not ast.get_docstring(node) and not is_property(node) and not ("." in inner and node.name in explained)
    ]
    assert not missing, "\n".join(missing)


FEWEST_WORDS = 5


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every docstring of a module with its line, private ones and those of constants and attributes included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        explains = isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        for before, statement in zip([None, *body], body, strict=False):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                follows = isinstance(before, ast.Assign | ast.AnnAssign) or (explains and before is None)
                if follows and isinstance(statement.value.value, str):
                    yield statement.lineno, statement.value.value


def test_docstrings_are_sentences() -> None:
    """Fewer words say what the name has said, or are a riddle: write what is meant, or leave the docstring out."""
    short = [
        f"{name}:{line}: {text!r}"
        for name, tree in modules().items()
        for line, text in docstrings(tree)
        if len(text.split()) < FEWEST_WORDS
    ]
    assert not short, "\n".join(short)


CONFIG = Qwen35Config(
    vocab_size=8, width=8, layer_types=hybrid_layer_types(4), mlp_width=8, num_heads=2, num_kv_heads=1, head_width=4,
    rope_width=2, rope_theta=1e4, conv_width=4, linear_key_heads=1, linear_value_heads=2, linear_key_width=4,
    linear_value_width=4, moe=MoEConfig(2, 1, 4, 4),
)  # fmt: skip
VALUES = (
    CONFIG,
    MoEConfig(2, 1, 4, 4),
    SamplerConfig(0.7),
    DraftConfig(2),
    FeatureRequest(),
    GenerateOptions(),
    Qwen35Target(CONFIG),
    Qwen35MTP(CONFIG),
    Decoder(Qwen35Target(CONFIG), Qwen35MTP(CONFIG)),
)


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_static_settings_are_hashable_values(value: object) -> None:
    """Equal settings are one static argument of a jitted function: they hash alike and cannot be changed."""
    assert is_dataclass(value)
    assert not isinstance(value, type)
    twin = replace(value)
    assert twin is not value
    assert twin == value
    assert hash(twin) == hash(value)
    name = fields(value)[0].name
    with pytest.raises(AttributeError):
        setattr(value, name, getattr(value, name))


def test_every_config_class_is_frozen() -> None:
    """A class named ...Config or ...Options is one of the static settings."""
    classes = [
        getattr(importlib.import_module(name), node.name)
        for name, tree in modules().items()
        if not below(name, {"specjax.training"})
        for node in tree.body
        if isinstance(node, ast.ClassDef) and re.search("(Config|Options)$", node.name)
    ]
    classes = [cls for cls in classes if not getattr(cls, "_is_protocol", False)]
    assert len(classes) >= 4
    assert all(is_dataclass(cls) and cls.__dataclass_params__.frozen for cls in classes)
