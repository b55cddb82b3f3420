"""The example of images learns, and goes on bit for bit after it was stopped."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from classify import train

from phalanx.job.data.audit_folder import audit_folder


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, one_thread: None) -> None:
    whole = train(tmp_path / "whole")
    assert len(whole) == 40 and sum(whole[-10:]) < 0.5 * sum(whole[:10])
    assert train(tmp_path / "halves", stop=23) + train(tmp_path / "halves") == whole
    found = audit_folder(tmp_path / "halves")
    assert found.complete and found.contents == "compared", found.says
    assert "5 whole epochs of data, each sample exactly once" in found.says
