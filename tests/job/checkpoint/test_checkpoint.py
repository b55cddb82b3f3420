"""Checkpoints as a gang of two makes and reads them. The cases live in checkpoint_cases.py and run in one launch."""

import json
import re
from pathlib import Path

import pytest

from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang

_SOURCE = Path(__file__).with_name("checkpoint_cases.py")
_CASES = re.findall(r"^def (case_\w+)", _SOURCE.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("gang")
    ranks = start_gang(["-m", "tests.job.checkpoint.checkpoint_cases", str(folder)], folder, 2, {})
    assert end_gang(ranks) == [0, 0], logs(folder)
    answers: dict[str, str] = json.loads((folder / "ended.json").read_text())
    return answers


def test_T10_a_checkpoint_that_could_not_be_loaded_is_never_committed(ended: dict[str, str]) -> None:
    assert not ended["case_t10_what_could_not_be_loaded_is_never_committed"]


@pytest.mark.parametrize("case", _CASES)
def test_gang(ended: dict[str, str], case: str) -> None:
    assert not ended[case], ended[case]
