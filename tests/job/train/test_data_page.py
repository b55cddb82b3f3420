"""The code of docs/data.md runs as it stands."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.job.data.random_tokens import write_tokens

PAGE = Path(__file__).resolve().parents[3] / "docs" / "data.md"


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokens(tmp_path / "data", [300_000])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert names["rows"].shape == (8, 2049) and names["stream"].step == 1010
    assert names["Cursor"].from_json(names["saved"]).delivered == 1010 * 64
