"""`phalanx sim run` and `sim replay`: what is handed on, what people and programs see."""

import json
from dataclasses import replace

import pytest

from phalanx.core.sim_report import SimReport, WhatIfView
from phalanx.show.cli.main import run
from phalanx.show.cli.options import Output
from phalanx.show.cli.output import emit
from phalanx.show.cli.sim_page import report_page, what_if_page
from tests.show.cli.phalanx_under_test import SIM_REPORT, TOOLS, WHAT_IF


def test_people_see_the_figures_and_nothing_hostile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOOLS, ["sim", "run", "--trace", "philly", "--trace-dir", "traces", "--report", "r.html", "--jobs", "j.csv"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b[31m" not in out
    for text in (
        "philly: 4 jobs over 1.5 days, 3 ended, 1 can never fit",
        "16 devices on 2 nodes",
        "62.5% productive of all device time",
        "70.0% held until the last submission; no scheduler could exceed 75.0%",
        "2 (priority 2); 0.5 GPU-hours went into stopping, starting again and doing again",
        "of idle device time lay on nodes too full for the typical job; while jobs waited, ",
        "Jain's index 0.990, least to most 0.900",
        "62.50%",
        "never fits: asks for 32",
        "The report is in r.html.",
        "When each job started is in j.csv.",
    ):
        assert text in out
    assert [line.split() for line in out.splitlines() if line.strip().startswith("vision")] == [
        ["vision", "2", "12", "1.00", "1m", "30s", "1m", "00s", "3m", "00s"]
    ]


def test_one_is_one_and_what_to_know_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    view = replace(SIM_REPORT, jobs=1, devices=1, nodes=1, decisions=1, skipped=1, notes=("Nobody knows FOO.",))
    emit(Output.TABLE, SimReport, view, lambda: report_page(view))
    out = capsys.readouterr().out
    for text in (
        ": 1 job over",
        "1 row never ran and is left out",
        "1 device on 1 node",
        "1 time through schedule",
        "Nobody knows FOO.",
    ):
        assert text in out
    view = replace(view, skipped=1088, skipped_for="no_gpu")
    emit(Output.TABLE, SimReport, view, lambda: report_page(view))
    assert "1,088 rows ask for no GPU and are left out" in " ".join(capsys.readouterr().out.split())
    side = replace(WHAT_IF.own, starts=1, started_devices=1)
    both = replace(WHAT_IF, devices=1, nodes=1, running=1, pending=1, own=side, other=side)
    emit(Output.TABLE, WhatIfView, both, lambda: what_if_page(both))
    out = capsys.readouterr().out
    assert "1 device on 1 node; 1 gang runs, 1 job waits" in out
    assert out.count("1 job, 1 device") == 2


def test_what_a_list_leaves_out_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    tenants = {f"team-{number}": SIM_REPORT.tenants["vision"] for number in range(27)}
    view = replace(SIM_REPORT, never_fitting=1_001, tenants=tenants)
    emit(Output.TABLE, SimReport, view, lambda: report_page(view))
    out = capsys.readouterr().out
    assert "  and 7 more; -o json has all\n" in out
    assert f"  and {1_001 - len(view.never):,} more, counted but not named\n" in out
    emit(Output.TABLE, SimReport, SIM_REPORT, lambda: report_page(SIM_REPORT))
    assert " more" not in capsys.readouterr().out


def test_programs_get_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOOLS, ["sim", "run", "--trace", "a.csv", "-o", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["trace"] == "a.csv"
    assert told["ledger"] == {"productive": 5000, "idle": 3000}
    assert sum(told["ledger"].values()) == told["capacity"]
    assert told["wait"] == {"count": 3, "mean": 90.0, "p50": 60.0, "p99": 180.0, "max": 180.0}
    assert told["tenants"]["speech"]["normalised"] is None
    assert set(told) == set(SIM_REPORT.__dataclass_fields__)


def test_both_policies_stand_side_by_side_with_whom_it_touches(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOOLS, ["sim", "replay", "now.json", "--policy", "other.yaml"]) == 0
    out = capsys.readouterr().out
    assert "ITS OWN POLICY" in out
    assert "THE OTHER POLICY" in out
    assert "other.yaml" in out and "OTHER.YAML" not in out
    assert "The policy promises too much." in out
    assert "now.json, of 2026-09-21 14:13:20 UTC" in out
    (line,) = [line for line in out.splitlines() if "a-1" in line]
    assert line.split()[:7] == ["loses", "a-1", "vision", "8", "-", "->", "2"]
    assert line.endswith("waits for quota")


def test_the_other_policy_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOOLS, ["sim", "replay", "now.json"]) == 2
    assert "--policy" in capsys.readouterr().err


def test_a_trace_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOOLS, ["sim", "run"]) == 2
    assert "--trace" in capsys.readouterr().err
