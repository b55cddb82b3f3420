"""docs/security.md is true: each test that it names is there, and each kind of attack has a row with tests."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
KINDS = (
    "no authority", "other tenants", "CSRF", "DNS rebinding", "link-local", "loopback", "redirects", "SSRF, rebinding",
    "SSRF by proxy", "replayed webhook", "traversal, workdir", "traversal, artifacts", "traversal, logs",
    "`file:` model sources", "archive slip", "archive bombs", "YAML bombs", "JSON bombs", "stored XSS", "ANSI",
    "command injection", "forged agents", "replayed epochs", "log lines of a gigabyte", "pickles", "secrets in environments",
)  # fmt: skip


def rows() -> list[list[str]]:
    text = (ROOT / "docs/security.md").read_text()
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("| ")][2:]


def named() -> list[str]:
    return sorted({test for row in rows() for test in re.findall(r"`(tests/[^`]+)`", row[-1])})


@cache
def found_in(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    functions = (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


@pytest.mark.parametrize("test", named())
def test_a_test_that_is_named_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert name in found_in(file), f"{test} is in docs/security.md and nowhere else; name the test that makes that attack now"


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_a_row_with_tests(kind: str) -> None:
    found = [row for row in rows() if kind in row[0]]
    assert len(found) == 1, kind
    assert all(found[0]) and "`tests/" in found[0][-1]


def test_each_row_is_of_a_kind_and_says_what_stops_it() -> None:
    assert len(rows()) > len(KINDS) and len(named()) > 50
    for row in rows():
        assert len(row) == 3 and len(row[1]) > 10 and "`tests/" in row[2], row[0]
