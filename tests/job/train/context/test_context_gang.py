"""Rows that four ranks share, and that two pairs share. The cases live in context_cases.py and run in one launch."""

from pathlib import Path

import pytest

from tests.job.checkpoint.gang_launch import logs
from tests.job.train.gang_cases import cases_of, played


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played("tests.job.train.context.context_cases", tmp_path_factory.mktemp("gang"), 4)


@pytest.mark.parametrize("case", cases_of(Path(__file__).with_name("context_cases.py")))
def test_gang(ended: Path, case: str) -> None:
    assert (ended / f"{case}.ended").exists(), logs(ended)
