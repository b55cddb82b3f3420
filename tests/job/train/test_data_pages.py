"""The code of the pages on data runs as it stands."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.job.data.audit_folder import audit_folder
from phalanx.job.data.tars.pack import pack
from tests.job.data.random_tokens import write_tokens

DOCS = Path(__file__).resolve().parents[3] / "docs"


def run(page: str, blocks: int) -> dict[str, Any]:
    """The names that a page's code leaves."""
    names: dict[str, Any] = {}
    found = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(found) == blocks
    for block in found:
        exec(compile(block, page, "exec"), names)
    return names


def test_data_is_read_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tokens(tmp_path / "data", [1_200_000])
    monkeypatch.chdir(tmp_path)
    names = run("data.md", blocks=4)
    assert names["rows"].shape == (8, 2049) and names["stream"].step == 1010
    assert names["Cursor"].from_json(names["saved"]).delivered == 1010 * 64
    assert names["resumed"].set_aside == names["sound"].set_aside and names["resumed"].set_aside[0].since == 64_000


def test_samples_are_read_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            np.save(tmp_path / "photos" / name / f"{number}.npy", np.full((8, 8), number, dtype=np.uint8))
    pack(tmp_path / "photos", tmp_path / "data", endings=["npy"])
    monkeypatch.chdir(tmp_path)
    names = run("data-samples.md", blocks=3)
    assert set(names["sample"].fields) == {"npy", "cls"} and names["label"] in ("cat", "dog")
    assert names["images"].shape == (8, 8, 8) and names["saved"]["delivered"] == 12 * 8
    assert "2 whole epochs of data, each sample exactly once" in audit_folder(tmp_path / "run").says


def test_data_is_ordered_as_the_page_says() -> None:
    names = run("data-order.md", blocks=2)
    assert len(names["draws"]) == 512 and names["first_step"] == 124
