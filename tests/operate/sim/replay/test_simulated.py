"""What `phalanx sim run` does, from its options to the report's file, on the example that people are given."""

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.errors import NotFound, SpecError
from phalanx.core.policy_parse import load_policy
from phalanx.core.sim_report import SimAsked, SimReport
from phalanx.core.units import utc_minute
from phalanx.decide.scheduler import schedule
from phalanx.operate.sim.replay.cluster import cluster_of
from phalanx.operate.sim.replay.costs import Costs
from phalanx.operate.sim.replay.engine import Replay, Setup
from phalanx.operate.sim.replay.simulated import deciding, simulate
from phalanx.operate.sim.traces.named import read_file

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "simulate"
ASKED = SimAsked(trace=str(EXAMPLE / "jobs.csv"), cluster=str(EXAMPLE / "cluster.yaml"), interval="5m", limit=60)


def test_the_example_runs_under_its_policy_and_writes_its_page(tmp_path: Path) -> None:
    done: list[tuple[int, int]] = []
    asked = replace(
        ASKED, policy=str(EXAMPLE / "policy.yaml"), report=str(tmp_path / "r.html"), limits="estimate", failures="20d", seed=3
    )
    found = simulate(asked, lambda over, jobs: done.append((over, jobs)))
    assert (found.jobs, found.finished, found.never_fitting) == (60, 60, 0)
    assert (found.devices, found.nodes, found.cluster) == (72, 9, "V100:8x9")
    assert (found.limits, found.seed, found.interval_s, found.through) == ("estimate", 3, 300.0, "schedule")
    assert sum(found.ledger.values()) == found.capacity
    assert found.allocation <= found.allocation_bound
    assert found.tenants["11cb48"].weight == 2
    assert done == [(over, 60) for over in range(1, 61)]
    assert [note.partition(":")[0] for note in found.notes] == ["0 of 60 jobs got a limit by --limits estimate"]
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_the_example_is_as_its_readme_says() -> None:
    asked = replace(ASKED, limit=None, interval="10s")
    default, exact, factor = (
        simulate(replace(asked, limits=limits), lambda over, jobs: None) for limits in ("trace", "exact", "factor:1.5")
    )
    policy = simulate(replace(asked, policy=str(EXAMPLE / "policy.yaml")), lambda over, jobs: None)
    assert not any("not in the policy" in note for note in policy.notes)

    def days(found: SimReport, tenant: str) -> float:
        return found.tenants[tenant].wait.mean / 86_400

    assert (round(days(default, "6c71a0"), 1), round(days(policy, "6c71a0"), 1)) == (11.6, 5.9)
    assert days(default, "11cb48") > 1 > 24 * days(policy, "11cb48")
    assert all(policy.tenants[one].wait.p99 > default.tenants[one].wait.p99 for one in ("7f04ca", "2869ce", "ee9e8c"))
    assert (default.evicted_for, list(policy.evicted_for)) == ({}, ["reclaim"])
    behind, over_quota = (
        [one.blocked_by.get(kind, 0) / sum(one.blocked_by.values()) for one in (default, policy)]
        for kind in ("behind", "over_quota")
    )
    assert [round(share, 2) for share in (*behind, *over_quota)] == [0.71, 0.93, 0.0, 0.01]
    assert [one.wait.mean / default.wait.mean for one in (exact, factor)] == pytest.approx([1 / 2, 1 / 3], abs=0.04)
    assert default.eta is not None and 0.14 < default.eta.coverage < 0.19, "one in six"
    assert all(one.eta is not None and 0.7 < one.eta.coverage < 0.8 and one.eta.without > 0.6 for one in (exact, factor))
    assert default.ledger["productive"] == policy.ledger["productive"] == exact.ledger["productive"]


def test_the_same_again_is_the_same() -> None:
    first, again = (simulate(replace(ASKED, limit=40, failures="5d"), lambda over, jobs: None) for _ in range(2))
    assert replace(first, wall_s=0, decide_ms=0) == replace(again, wall_s=0, decide_ms=0)


def test_through_the_control_plane(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    trace.write_text("submit_s,duration_s,devices,tenant\n0,60,8,a\n10,60,16,b\n20,60,1,a\n")
    found = simulate(SimAsked(trace=str(trace), cluster="H100:8x2", through_control=True), lambda over, jobs: None)
    assert (found.through, found.finished) == ("control", 3)
    assert sum(found.ledger.values()) == found.capacity
    asked = SimAsked(trace=str(trace), cluster="H100:8x2", through_control=True, start="2017-10-04T00:00Z")
    earlier = simulate(asked, lambda over, jobs: None)
    assert utc_minute(earlier.start_ms) == "2017-10-04 00:00 UTC"
    first, second = (replace(one, wall_s=0, decide_ms=0, start_ms=0) for one in (earlier, found))
    assert first == second, "the date changes nothing"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"limit": 0}, "--limit"),
        ({"interval": "soon"}, "--interval"),
        ({"interval": "2d"}, "--interval"),
        ({"checkpoint": "0s"}, "--checkpoint"),
        ({"failures": "1s"}, "--failures"),
        ({"failures": "1m"}, "--failures"),
        ({"failures": "30d", "through_control": True}, "--failures"),
        ({"jobs": "absent/jobs.csv"}, "--jobs"),
        ({"startup": "-5"}, "--startup"),
        ({"limits": "some"}, "--limits"),
        ({"limits": "factor:1_5"}, "--limits"),
        ({"cluster": "lots"}, "--cluster"),
        ({"start": "2026-02-30"}, "--start"),
        ({"start": "2026-02-28T23:00"}, "--start"),
        ({"start": "1969-01-01T00:00Z"}, "--start"),
        ({"start": "9999-01-01T00:00Z"}, "--start"),
        ({"report": "/"}, "--report"),
        ({"report": "absent/r.html"}, "--report"),
        ({"policy": "absent.yaml"}, "policy file"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, object], field: str) -> None:
    with pytest.raises((SpecError, NotFound)) as caught:
        simulate(replace(ASKED, **changes), lambda over, jobs: None)  # type: ignore[arg-type]  # a test's shorthand
    assert caught.value.field == field


def test_what_the_cluster_cannot_keep_or_nobody_knows_of_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("queues: {a: {quota: {FOO: 32}}}\n")
    policy = str(tmp_path / "p.yaml")
    unknown, quota, *_ = simulate(replace(ASKED, limit=5, cluster="FOO:8x2", policy=policy), lambda over, jobs: None).notes
    assert unknown == "The catalogue does not have FOO: no device memory or price is known of it."
    assert quota.startswith(
        "The policy promises what this cluster cannot keep: queues.a.quota.FOO is 32: 32 FOO are guaranteed in all"
    )


PLAIN = "submit_s,duration_s,devices,limit_s\n0,3600,8,\n10,3600,8,\n20,3600,8,{limit}\n"
LIMITLESS = "none passes the first in line on the devices kept for it"


def notes_of(tmp_path: Path, limit: str = "", policy: str = "", **more: object) -> tuple[str, ...]:
    """Of three jobs, on one node where not told otherwise."""
    trace, rules = tmp_path / "mine.csv", tmp_path / "p.yaml"
    trace.write_text(PLAIN.format(limit=limit))
    rules.write_text(policy)
    asked = replace(SimAsked(trace=str(trace), cluster="H100:8x1", policy=str(rules) if policy else ""), **more)  # type: ignore[arg-type]
    return simulate(asked, lambda over, jobs: None).notes


def test_it_is_said_when_nobody_says_how_long_it_runs_and_so_nothing_passes(tmp_path: Path) -> None:
    assert notes_of(tmp_path) == (f"No job says how long it runs, so {LIMITLESS}; try --limits estimate, exact or factor:1.5.",)
    assert notes_of(tmp_path, limits="none") == notes_of(tmp_path)
    (few,) = notes_of(tmp_path, limits="estimate")
    assert few.startswith("0 of 3 jobs got a limit by --limits estimate: the jobs of a tenant and size have one once 20 of them")
    assert few.endswith(f"So {LIMITLESS}.")
    assert notes_of(tmp_path, through_control=True) == notes_of(tmp_path)
    for more in ({"limit": "9999"}, {"limits": "exact"}, {"cluster": "H100:8x3"}, {"policy": "backfill: false\n"}):
        assert notes_of(tmp_path, **more) == ()


def test_failures_so_frequent_that_no_job_ever_gets_on_are_refused_with_what_would_do(tmp_path: Path) -> None:
    """Jobs of an hour, that save every half; a restart takes a minute."""
    with pytest.raises(SpecError, match="job-2 holds 1 node and has to go 31m 00s without a failure of one to get on; write 7m"):
        notes_of(tmp_path, "3600", failures="2m")
    assert notes_of(tmp_path, "3600", failures="1h") == ()
    assert notes_of(tmp_path, "3600", failures="2m", checkpoint="1m") == ()


def test_tenants_that_the_policy_does_not_name_are_named(tmp_path: Path) -> None:
    trace, policy = tmp_path / "mine.csv", tmp_path / "p.yaml"
    trace.write_text("submit_s,duration_s,devices,tenant\n0,60,8,a\n0,60,8,\n" + "".join(f"0,60,8,t{n}\n" for n in range(5)))
    asked = SimAsked(trace=str(trace), cluster="H100:8x9", policy=str(policy))
    live = "a live platform refuses jobs of a queue that its policy does not name."
    for text, notes in (
        ("{}", ()),
        (
            "queues: {a: {}}",
            (f"The tenants t0, t1, t2 and 2 more are not in the policy and have weight 1 and no quota each; {live}",),
        ),
        (
            "queues: {a: {}, t0: {}, t1: {}, t2: {}, t3: {}}",
            (f"The tenant t4 is not in the policy and has weight 1 and no quota; {live}",),
        ),
    ):
        policy.write_text(text)
        assert simulate(asked, lambda over, jobs: None).notes == notes


def test_who_started_when_is_a_table(tmp_path: Path) -> None:
    trace, policy, out = tmp_path / "mine.csv", tmp_path / "p.yaml", tmp_path / "out.csv"
    rows = (
        "0,1800,8,first,a,1800",
        "600.5,600,8,second,b,600",
        "700,60,64,big,a,60",
        "8000,60,8,poor,c,60",
        "9000,60,1,poorer,c,60",
    )
    trace.write_text("submit_s,duration_s,devices,name,tenant,limit_s\n" + "\n".join(rows) + "\n")
    policy.write_text("queues: {a: {}, b: {}, c: {budget: {gpu_hours: 0.1, period: total}}}\npreemption: {reclaim: false}\n")
    asked = SimAsked(trace=str(trace), cluster="H100:8x1", policy=str(policy), jobs=str(out))
    found = simulate(asked, lambda over, jobs: None)
    assert (found.jobs_written, found.never_fitting, found.never_started) == (str(out), 1, 1)
    with out.open(encoding="utf-8", newline="") as text:
        first, second, big, poor, poorer = csv.DictReader(text)
    assert first == {
        "job": "first", "tenant": "a", "devices": "8", "submit_s": "0", "start_s": "0", "end_s": "1800", "evictions": "0",
        "eta_low_s": "", "eta_high_s": "", "why_never": "",
    }  # fmt: skip
    assert (second["submit_s"], second["start_s"], second["end_s"]) == ("600.5", "1800", "2400")
    assert float(second["eta_low_s"]) <= 1800 <= float(second["eta_high_s"])
    assert (big["start_s"], big["end_s"], big["why_never"].partition(":")[0]) == ("", "", "never fits")
    assert (poor["start_s"], poor["why_never"]) == ("8000", "")
    assert poorer["why_never"].startswith("did not start though nothing else ran: waits for budget: c has spent")
    trace.write_text("submit_s,duration_s,devices,name\n0,60,8,first\n")
    simulate(replace(asked, through_control=True), lambda over, jobs: None)
    assert [line.split(",")[0] for line in out.read_text().splitlines()] == ["job", "first"]


def test_that_a_cluster_was_made_to_fit_is_said(tmp_path: Path) -> None:
    (made,) = notes_of(tmp_path, cluster="")
    assert made.startswith("The cluster was made as large as the trace's peak, so that jobs hardly wait")


def test_spot_nodes_are_used_by_jobs_that_may_and_it_is_said_when_none_may(tmp_path: Path) -> None:
    """One node of each kind, and two jobs of a whole node. Who allows spot begins there too, as it is cheaper; who prefers it waits
    for it, yet not for ever."""
    cluster = tmp_path / "c.yaml"
    cluster.write_text("nodes: [{count: 1, gpus: 'H100:8'}, {count: 1, gpus: 'H100:8', spot: true, price: 0.3}]\n")
    trace = tmp_path / "mine.csv"
    for spots, control, runs, waits in (
        (",", False, 120, 120.0), (",", True, 120, 120.0), (",allow", False, 120, 0.0), (",allow", True, 120, 0.0),
        (",prefer", False, 120, 0.0), ("prefer,prefer", False, 120, 120.0), ("prefer,prefer", False, 3600, 600.0),
    ):  # fmt: skip
        first, second = spots.split(",")
        trace.write_text(f"submit_s,duration_s,devices,limit_s,spot\n0,{runs},8,3600,{first}\n0,{runs},8,3600,{second}\n")
        found = simulate(SimAsked(trace=str(trace), cluster=str(cluster), through_control=control), lambda over, jobs: None)
        assert found.wait.max == pytest.approx(waits, abs=30)
        none = "No job of the trace may use spot nodes, so the 1 spot node of the cluster, with 8 devices, stayed idle"
        assert [note.startswith(none) for note in found.notes] == [True] * (spots == ",")


BOOKED = 'bookings: {{demo: {{queue: default, devices: "H100:8", start: "{0}T00:00Z", end: "{0}T12:00Z"}}}}\n'


@pytest.mark.parametrize(
    ("date", "start", "has_effect"),
    [
        ("2023-11-15", "", True),  # a trace without dates begins on the evening before
        ("2026-03-01", "", False),
        ("2026-03-01", "2026-02-28T23:00:00Z", True),
        ("2023-11-15", "2026-03-01T00:00:00+01:00", False),
    ],
)
def test_bookings_go_by_the_date_of_the_run(tmp_path: Path, date: str, start: str, has_effect: bool) -> None:
    notes = notes_of(tmp_path, "3600", BOOKED.format(date), start=start)
    assert (notes == ()) == has_effect
    if not has_effect:
        assert notes[0].startswith("The booking demo lies outside this run, which is from 20")
        assert notes[0].endswith("UTC, and had no effect; --start sets another date.")


def test_a_trace_with_dates_runs_at_its_own() -> None:
    """And at which date it runs changes no figure of a policy that knows no dates."""
    asked = replace(ASKED, limit=40, policy=str(EXAMPLE / "policy.yaml"))
    own, other = (simulate(replace(asked, start=start), lambda over, jobs: None) for start in ("", "2026-02-28T23:00Z"))
    assert (utc_minute(own.start_ms), utc_minute(other.start_ms)) == ("2017-10-04 00:00 UTC", "2026-02-28 23:00 UTC")
    assert replace(own, wall_s=0, decide_ms=0, start_ms=0) == replace(other, wall_s=0, decide_ms=0, start_ms=0)


def test_windows_that_no_job_names_are_told(tmp_path: Path) -> None:
    (told,) = notes_of(tmp_path, "3600", "windows: {nights: [{days: all}]}\n")
    assert told == "No job of a trace names a window, so the policy's windows had no effect."


def test_a_wrong_cluster_is_told_before_the_trace_is_read() -> None:
    with pytest.raises(SpecError, match="--cluster"):
        simulate(replace(ASKED, trace="absent.csv", cluster="H100:0x3"), lambda over, jobs: None)


def test_a_replay_does_without_the_control_plane_and_its_database() -> None:
    code = (
        "import sys, phalanx.operate.sim.replay.simulated; print([one for one in sys.modules if one in ('sqlalchemy', 'alembic')])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_what_the_scheduler_remembers_changes_no_decision_of_a_whole_replay() -> None:
    """With evictions, failures, two queues and quotas: every start at the same time as when each decision is the first one."""
    trace = read_file(EXAMPLE / "jobs.csv").first(50)
    policy = load_policy(EXAMPLE / "policy.yaml")
    setup = Setup(policy=policy, costs=Costs(mtbf_ms=5 * 86_400_000), interval_ms=300_000, seed=5)
    nodes = cluster_of("V100:8x5", trace)
    remembering, anew = (Replay(trace, nodes, setup, decide).run() for decide in (deciding(), schedule))
    assert remembering.starts == anew.starts
    assert remembering.evictions == anew.evictions
    assert remembering.ledger == anew.ledger
