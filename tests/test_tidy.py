"""The house stays tidy: sizes, names, and documentation that is complete because a test counts."""

import ast
import dataclasses
import inspect
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from phalanx.core import errors, events, recipe, spec, training_data
from phalanx.record.telemetry.ledger.categories import CATEGORIES
from tests.conftest import LONGEST

ROOT = Path(__file__).resolve().parent.parent
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 600
BANNED = re.compile(r"manager|utils?|helpers?|common|misc", re.IGNORECASE)
CODE = ("src", "tests", "examples", "benchmarks")


class Defined(NamedTuple):
    """A function or class of a file."""

    name: str
    kind: str
    line: int
    lines: int
    docstring: str | None


class Read(NamedTuple):
    """What a file of Python says of itself."""

    lines: int
    docstring: str | None
    definitions: tuple[Defined, ...]


@cache
def python_files() -> tuple[Path, ...]:
    return tuple(path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def read(path: Path) -> Read:
    """Parsed once for all tests, which took half a minute of them; the trees would take more memory than what is asked of them."""
    text = path.read_text()
    tree = ast.parse(text)
    return Read(len(text.splitlines()), ast.get_docstring(tree), tuple(_defined(tree)))


def _defined(tree: ast.AST) -> Iterator[Defined]:
    """Those inside of others too. None is inside of an expression, where most of a tree is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            yield Defined(node.name, type(node).__name__, node.lineno, lines, ast.get_docstring(node))
        if not isinstance(node, ast.expr):
            yield from _defined(node)


def test_functions_and_modules_are_short() -> None:
    long = [f"{path.relative_to(ROOT)}: module" for path in python_files() if read(path).lines > MODULE_LINES_MAX]
    long += [
        f"{path.relative_to(ROOT)}:{one.line} {one.name}"
        for path in python_files()
        for one in read(path).definitions
        if one.kind != "ClassDef" and one.lines > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_most_of_the_house_is_small() -> None:
    modules = [path for path in python_files() if path.is_relative_to(ROOT / "src")]
    large = [path for path in modules if read(path).lines > 300]
    assert len(large) <= len(modules) // 10


def test_no_name_says_nothing() -> None:
    words = [part for path in python_files() for part in re.split(r"[/_.]", str(path.relative_to(ROOT)))]
    words += [part for path in python_files() for one in read(path).definitions for part in re.findall(r"[A-Z]?[a-z]+", one.name)]
    assert sorted({word for word in words if BANNED.fullmatch(word)}) == []


def test_every_module_and_public_class_of_src_says_what_it_is() -> None:
    silent = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files()
        if path.is_relative_to(ROOT / "src")
        for name, docstring in documented(path)
        if not docstring and not name.startswith("_")
    ]
    assert silent == []


def documented(path: Path) -> Iterator[tuple[str, str | None]]:
    yield "module", read(path).docstring
    for one in read(path).definitions:
        if one.kind == "ClassDef":
            yield one.name, one.docstring


@pytest.mark.parametrize(
    "kind",
    [
        spec.JobSpec,
        spec.Resources,
        spec.Environment,
        spec.CheckpointPolicy,
        training_data.DataSource,
        training_data.MixtureSource,
        training_data.WeightChange,
        training_data.Blocks,
        spec.Notify,
        spec.Recovery,
        spec.LayoutSpec,
        spec.ProfileSpec,
        recipe.LlamaRecipe,
    ],
    ids=lambda kind: kind.__name__,
)
def test_every_config_field_is_documented(kind: type) -> None:
    docstring = inspect.getdoc(kind) or ""
    page = (ROOT / "docs/job-spec.md").read_text()
    names = [field.name for field in dataclasses.fields(kind)]
    assert [name for name in names if not re.search(rf"\b{name}(:|; or else)", docstring)] == []
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_variable_of_a_rank_is_documented() -> None:
    page = (ROOT / "docs/job-spec.md").read_text()
    given = set(re.findall(r'"(PHALANX_[A-Z_]+)"', (ROOT / "src/phalanx/operate/agent/launch_env.py").read_text()))
    assert len(given) > 10
    assert [name for name in sorted(given) if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    "kind",
    [spec.JobSpec, spec.CheckpointPolicy, spec.Recovery, spec.LayoutSpec, recipe.LlamaRecipe],
    ids=lambda kind: kind.__name__,
)
def test_documented_defaults_are_the_real_ones(kind: type) -> None:
    rows = [line for line in (ROOT / "docs/job-spec.md").read_text().splitlines() if line.startswith("| `")]
    plain = [field for field in dataclasses.fields(kind) if isinstance(field.default, int | float | str) and field.default != ""]
    wrong = [field.name for field in plain if not any(row_says(row, field.name, field.default) for row in rows)]
    assert wrong == []


def row_says(row: str, name: str, default: object) -> bool:
    cells = [cell.strip().strip("`") for cell in row.strip("|").split("|")]
    written = str(default).lower() if isinstance(default, bool) else str(default)
    return cells[0].rpartition(".")[2] == name and cells[2] == written


def test_no_figure_is_a_placeholder() -> None:
    assert re.findall(r"\b[A-Z]+_[A-Z_]+\b(?!`)", re.sub(r"`[^`]*`", "", (ROOT / "docs/benchmarks.md").read_text())) == []


def test_every_error_is_documented() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    names = [name for name, item in vars(errors).items() if inspect.isclass(item) and issubclass(item, errors.PhalanxError)]
    assert [name for name in names if f"`{name}`" not in page] == []


def test_every_ledger_category_is_documented() -> None:
    page = (ROOT / "docs/ledger.md").read_text()
    assert [name for name, meaning in CATEGORIES.items() if f"| `{name}` | {meaning} |" not in page] == []


def test_every_event_says_what_happened() -> None:
    kinds = [item for item in vars(events).values() if inspect.isclass(item) and item.__module__ == events.__name__]
    assert [kind.__name__ for kind in kinds if not kind.__doc__ or kind.__doc__.startswith(kind.__name__ + "(")] == []


def test_every_decision_record_is_listed_and_short() -> None:
    records = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    listing = (ROOT / "docs/adr/README.md").read_text()
    assert [path.name for path in records if path.name not in listing] == []
    assert [path.name for path in records if len(path.read_text().splitlines()) > 40] == []
    assert [int(path.name[:4]) for path in records] == list(range(1, len(records) + 1))


def test_no_two_files_of_tests_have_one_name() -> None:
    """pytest imports them by it, and refuses the second one: seen only where all are run together."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_nothing_tracked_names_a_machine_of_ours() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    hostile = re.compile(r"/root/|/work/(main|shared)|https?://[a-z.]*(pypi|pythonhosted)[a-z.]*/")
    own = Path(__file__).name
    found = [name for name in tracked if Path(name).name != own and hostile.search((ROOT / name).read_text(errors="replace"))]
    assert found == []


def test_files_that_begin_first_are_there() -> None:
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
