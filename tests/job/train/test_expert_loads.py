"""What a run says of its experts' loads, read by who reads it: the platform's records, and `phalanx experts`."""

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from phalanx.core import wire
from phalanx.core.moe import MoeShape
from phalanx.core.records import Metric, RankRecord
from phalanx.job.models.moe.router import Router
from phalanx.job.sdk.journal import Bell, Journal
from phalanx.job.sdk.session import Session
from phalanx.job.train.expert_loads import FILE, STEPS_MAX, ExpertLoads, imbalance
from phalanx.show.cli.main import run
from tests.show.cli.phalanx_under_test import TOOLS


@pytest.fixture
def session(tmp_path: Path) -> Session:
    journal = Journal(tmp_path / "records", Bell("", 0, lambda: 0.0))
    return Session(artifacts_dir=str(tmp_path), journal=journal)


def with_loads(*loads: list[int]) -> nn.Module:
    """As a model has them after an update."""
    model = nn.ModuleList(nn.ModuleDict({"router": Router(4, MoeShape(experts=4, per_token=1, ffn_dim=4))}) for _ in loads)
    for router, load in zip((part for part in model.modules() if isinstance(part, Router)), loads, strict=True):
        router.load.copy_(torch.tensor(load))
    return model


def metrics(tmp_path: Path) -> list[tuple[int, str, float]]:
    lines = (tmp_path / "records").read_bytes().splitlines() if (tmp_path / "records").exists() else []
    found = [wire.loads(RankRecord, line) for line in lines]
    return [(one.step, one.name, one.value) for one in found if isinstance(one, Metric)]


def test_metrics_and_a_file_that_the_balancer_takes(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    loads = ExpertLoads(with_loads([4, 0, 2, 2], [1, 5, 1, 1]), session, speaks=True, total_steps=600)
    for step in range(1, 4):
        loads.stepped(step)
    assert metrics(tmp_path) == [(3, "expert_imbalance", 2.5), (3, "expert_imbalance.0", 2.0), (3, "expert_imbalance.1", 2.5)]
    assert "fullest expert 2.50 x the mean, in mixture 1 of 2" in caplog.text
    assert json.loads((tmp_path / FILE).read_text()) == [[12, 0, 6, 6], [3, 15, 3, 3]]
    assert run(TOOLS, ("experts", str(tmp_path / FILE), "--gpus-per-node", "2", "--slots-per-gpu", "2")) == 0
    assert "2 layers of 4 experts" in capsys.readouterr().out


def test_the_file_is_of_the_last_steps_and_of_the_very_last(session: Session, tmp_path: Path) -> None:
    loads = ExpertLoads(with_loads([1, 1, 1, 1]), session, speaks=True, total_steps=STEPS_MAX + 7)
    for step in range(1, STEPS_MAX + 8):
        loads.stepped(step)
    assert json.loads((tmp_path / FILE).read_text()) == [[STEPS_MAX] * 4]
    assert metrics(tmp_path)[-1] == (STEPS_MAX + 7, "expert_imbalance.0", 1.0)


def test_other_ranks_and_dense_models_say_nothing(session: Session, tmp_path: Path) -> None:
    ExpertLoads(with_loads([4, 0, 2, 2]), session, speaks=False, total_steps=1).stepped(1)
    ExpertLoads(nn.Linear(2, 2), session, speaks=True, total_steps=1).stepped(1)
    assert metrics(tmp_path) == [] and not (tmp_path / FILE).exists()


def test_a_file_that_cannot_be_written_costs_one_warning(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()
    loads = ExpertLoads(with_loads([4, 0, 2, 2]), session, speaks=True, total_steps=9)
    loads.stepped(1)
    loads.stepped(2)
    assert len(metrics(tmp_path)) == 4
    assert [one.levelname for one in caplog.records if "could not be written" in one.message] == ["WARNING"]


def test_a_layer_without_tokens_is_even() -> None:
    assert imbalance(torch.tensor([[0, 0], [3, 1]])) == [1.0, 1.5]
