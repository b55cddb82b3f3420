"""Saves in the background of a gang of two. The cases live in pipeline_cases.py and run in one launch."""

import json
import re
from pathlib import Path

import pytest

from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang

_SOURCE = Path(__file__).with_name("pipeline_cases.py")
_CASES = re.findall(r"^def (case_\w+)", _SOURCE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("gang")
    ranks = start_gang(["-m", "tests.job.checkpoint.pipeline_cases", str(folder)], folder, 2, {})
    assert end_gang(ranks) == [0, 0], logs(folder)
    answers: dict[str, str] = json.loads((folder / "ended.json").read_text())
    return answers


@pytest.mark.parametrize("case", _CASES)
def test_gang(ended: dict[str, str], case: str) -> None:
    assert not ended[case], ended[case]
