"""Mixtures of experts over a gang of four, in one launch. The cases are in expert_cases.py."""

from pathlib import Path

import pytest

from tests.job.checkpoint.gang_launch import logs
from tests.job.train.gang_cases import cases_of, played

LIMIT_S = 800
"""One launch for all; on two cores that others use too it was seen to take 240."""
pytestmark = pytest.mark.timeout(LIMIT_S + 60)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played("tests.job.train.expert_cases", tmp_path_factory.mktemp("gang"), 4, LIMIT_S)


@pytest.mark.parametrize("case", cases_of(Path(__file__).with_name("expert_cases.py")))
def test_gang(ended: Path, case: str) -> None:
    assert (ended / f"{case}.ended").exists(), logs(ended)
