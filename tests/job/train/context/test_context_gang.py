"""Rows that four ranks share, and that two pairs share. The cases live in context_cases.py and run in one launch."""

import re
from pathlib import Path

import pytest

from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang

_SOURCE = Path(__file__).with_name("context_cases.py")
_CASES = re.findall(r"^def (case_\w+)", _SOURCE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gang")
    end_gang(start_gang(["-m", "tests.job.train.context.context_cases", str(folder)], folder, 4, {}))
    return folder


@pytest.mark.parametrize("case", _CASES)
def test_gang(ended: Path, case: str) -> None:
    assert (ended / f"{case}.ended").exists(), logs(ended)
