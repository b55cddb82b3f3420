"""Faults planned while a rank runs: found in the attempt's folder, met once by whoever holds the rank, and told."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.chaos import PLAN, Asked, FaultKind, FaultMet, Plan, planned
from phalanx.core.records import RankRecord, StepRecord
from phalanx.job.sdk import attach
from phalanx.job.sdk.chaos import outage
from phalanx.job.sdk.session import Session


def plan(folder: Path, *asked: Asked) -> None:
    folder.mkdir(exist_ok=True)
    faults = tuple(planned(one, number) for number, one in enumerate(asked, 1))
    staged = folder / "staged"
    staged.write_text(wire.dumps(Plan, Plan(faults, len(faults))))
    staged.replace(folder / PLAN)


def rank(tmp_path: Path, number: int = 0) -> tuple[Session, list[str]]:
    records = tmp_path / f"rank-{number}.records"
    env = {"RANK": str(number), "PHALANX_RECORDS": str(records), "PHALANX_CHAOS": str(tmp_path / "chaos")}
    met: list[str] = []
    return replace(attach(env), meet=met.append, pause=lambda seconds: met.append(f"{seconds:g} s")), met


def make_step(session: Session, step: int) -> None:
    rest = {
        "total_steps": 9,
        "loss": 1.0,
        "loss_hex": "",
        "grad_norm": 1.0,
        "lr": 1.0,
        "tokens": 1,
        "tokens_per_s": 1.0,
        "mfu": 0.0,
    }
    session.step(StepRecord(rank=session.rank, step=step, started_ms=1, ended_ms=1, **rest))  # type: ignore[arg-type] # floats


def told(tmp_path: Path, number: int = 0) -> list[tuple[int, int, bool]]:
    lines = (tmp_path / f"rank-{number}.records").read_text().splitlines()
    facts = [fact for fact in (wire.loads(RankRecord, line) for line in lines) if isinstance(fact, FaultMet)]
    return [(fact.number, fact.step, fact.late) for fact in facts]


def test_it_is_met_at_its_step_and_never_again(tmp_path: Path) -> None:
    session, met = rank(tmp_path)
    make_step(session, 1)
    plan(tmp_path / "chaos", Asked(fault="kill-rank", step=3), Asked(fault="hang-rank", rank=1))
    make_step(session, 2)
    assert met == []
    make_step(session, 3)
    make_step(session, 3)
    successor, its = rank(tmp_path)
    make_step(successor, 3)
    assert (met, its, told(tmp_path)) == (["sigkill"], [], [(1, 3, False)])


def test_one_that_comes_too_late_is_told_and_not_met(tmp_path: Path) -> None:
    session, met = rank(tmp_path)
    plan(tmp_path / "chaos", Asked(fault="hang-rank", step=3))
    make_step(session, 4)
    make_step(session, 3)  # made again
    assert (met, told(tmp_path)) == ([], [(1, 4, True)])


def test_a_hang_that_ends_and_a_plan_that_grows(tmp_path: Path) -> None:
    session, met = rank(tmp_path)
    asked = [Asked(fault="hang-rank", for_ms=1_500)]
    plan(tmp_path / "chaos", *asked)
    make_step(session, 1)
    plan(tmp_path / "chaos", *asked, Asked(fault="hang-rank"))
    make_step(session, 2)
    assert (met, told(tmp_path)) == (["1.5 s", "hang"], [(1, 1, False), (2, 2, False)])


def test_only_a_rank_in_an_attempt_that_allows_it(tmp_path: Path) -> None:
    plan(tmp_path / "chaos", Asked(fault="kill-rank"))
    session, met = rank(tmp_path)
    make_step(replace(session, chaos=None), 1)
    assert met == []


@pytest.mark.parametrize("kind", ["fill-disk", "drop-store"])
def test_each_ranks_keeper_is_refused_from_its_own_step_on_for_a_while(tmp_path: Path, kind: FaultKind) -> None:
    chaos = tmp_path / "chaos"
    plan(chaos, Asked(fault=kind, for_ms=600_000))
    first, _ = rank(tmp_path)
    make_step(first, 1)
    assert (outage(str(chaos), 0), outage(str(chaos), 1), outage("", 0)) == (kind, "", "")
    second, _ = rank(tmp_path, 1)
    make_step(second, 1)
    assert outage(str(chaos), 1) == kind
    mark = chaos / "met-1-1"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"ends_ms": 1}))
    assert outage(str(chaos), 1) == ""


def test_a_damaged_plan_and_an_unwritable_folder_cost_the_rank_nothing(tmp_path: Path) -> None:
    session, met = rank(tmp_path)
    plan(tmp_path / "chaos", Asked(fault="kill-rank"))
    (tmp_path / "chaos" / PLAN).write_text("{")
    make_step(session, 1)
    (tmp_path / "chaos" / PLAN).unlink()
    (tmp_path / "chaos").rmdir()
    make_step(session, 2)
    assert met == []
