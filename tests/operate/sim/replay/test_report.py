"""The figures of a replay, against hand-made histories; and the page, which no name of a trace can break out of."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.plot_page import ALONE
from phalanx.core.policy import Budget, Policy, Queue
from phalanx.core.sim_report import EtaView, SimReport
from phalanx.core.svg import BOTTOM, CHAR, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, bar_plot, line_plot
from phalanx.operate.sim.replay.account import fair_shares
from phalanx.operate.sim.replay.cluster import cluster_of
from phalanx.operate.sim.replay.costs import FREE
from phalanx.operate.sim.replay.engine import Replay, Setup
from phalanx.operate.sim.replay.outcome import Life, Outcome, Told
from phalanx.operate.sim.replay.page import cdf, page
from phalanx.operate.sim.replay.report import bound, buckets, eta_of, report, spread
from phalanx.operate.sim.replay.simulated import deciding
from phalanx.operate.sim.traces.trace import Trace, TraceJob

MINUTE = 60_000
DEFAULT = Policy()


def test_the_figures_of_two_jobs_of_which_one_waits() -> None:
    found, _ = reported([TraceJob("a", 0, 10 * MINUTE, 8, "x"), TraceJob("b", 4 * MINUTE, 20 * MINUTE, 8, "y")])
    assert (found.jobs, found.finished, found.devices, found.nodes) == (2, 2, 8, 1)
    assert found.utilisation == found.allocation == found.allocation_bound == 1.0
    assert (found.wait.mean, found.wait.p50, found.wait.p99, found.wait.max) == (180.0, 0.0, 360.0, 360.0)
    assert found.jct.mean == (600 + 26 * 60) / 2
    assert list(found.wait_by_size) == ["2-8 devices"]
    assert list(found.wait_by_class) == ["standard"]
    assert found.tenants["y"].wait.max == 360.0
    assert found.tenants["x"].gpu_hours == pytest.approx(8 / 6)
    assert sum(found.ledger.values()) == found.capacity == 8000 * 30 * MINUTE


def test_idle_devices_of_nodes_that_the_first_in_line_cannot_use_are_fragments() -> None:
    """Three of four devices of each node are held, and a job of two waits for one of them."""
    jobs = [TraceJob(f"a{number}", 0, 10 * MINUTE, 3) for number in range(2)] + [TraceJob("b", MINUTE, MINUTE, 2)]
    found, _ = reported(jobs, "H100:4x2")
    assert found.fragmentation_waiting == 1.0
    assert found.blocked_by.keys() <= {"geometry", "no_room"}


def test_no_scheduler_can_hold_more_than_the_bound() -> None:
    """Two jobs of ten minutes in the first minute, each of the whole fleet, and a last one after twenty: all of that time can be
    filled, but not a minute before the first, and not by what comes last."""
    jobs = [TraceJob("a", 0, 10 * MINUTE, 8), TraceJob("b", MINUTE, 4 * MINUTE, 8), TraceJob("c", 20 * MINUTE, MINUTE, 8)]
    assert bound(jobs, 8, 20 * MINUTE) == pytest.approx(14 / 20)
    assert bound(jobs, 16, 20 * MINUTE) == pytest.approx(7 / 20)
    assert bound(jobs, 4, 20 * MINUTE) == pytest.approx(1.0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60), st.integers(1, 16)), min_size=2, max_size=25), st.integers(1, 3))
def test_held_devices_never_exceed_the_bound(rows: list[tuple[int, int, int]], nodes: int) -> None:
    jobs = [TraceJob(str(at), at * MINUTE, ms * MINUTE, min(devices, 8 * nodes)) for at, ms, devices in rows]
    even = [replace(job, devices=job.devices if job.devices <= 8 else 16) for job in jobs if nodes > 1 or job.devices <= 8]
    found, _ = reported(even, f"H100:8x{nodes}")
    assert found.allocation <= found.allocation_bound + 1e-9


def test_what_never_fits_is_no_part_of_the_bound() -> None:
    jobs = [TraceJob("big", 0, 100 * MINUTE, 64), TraceJob("a", 0, 5 * MINUTE, 8), TraceJob("b", 10 * MINUTE, MINUTE, 8)]
    found, _ = reported(jobs, "H100:8x1")
    assert found.never_fitting == 1
    assert found.allocation_bound == pytest.approx(5 / 10)


def test_who_only_lacks_a_budget_fits_and_is_counted_apart() -> None:
    """It is part of the bound: under another policy it would have run."""
    jobs = [TraceJob("a", 0, 10 * MINUTE, 8, "x"), TraceJob("b", 10 * MINUTE, MINUTE, 8, "x"), TraceJob("big", 0, MINUTE, 64, "y")]
    policy = Policy(queues={"x": Queue(budget=Budget(gpu_hours=1, period="total")), "y": Queue()})
    found, outcome = reported(jobs, "H100:8x1", policy)
    assert (found.never_fitting, found.never_started, found.finished) == (1, 1, 1)
    assert {one.job: one.why.partition(":")[0] for one in found.never} == {
        "b": "did not start though nothing else ran", "big": "never fits",
    }  # fmt: skip
    assert "<b>1</b><span>job never started</span>" in page(found, outcome, policy)


def test_percentiles_are_by_nearest_rank() -> None:
    found = spread(range(1000, 101_000, 1000))
    assert (found.count, found.mean, found.p50, found.p99, found.max) == (100, 50.5, 50.0, 99.0, 100.0)
    assert spread([None]).count == 0


def test_only_intervals_that_would_be_shown_count_and_how_many_starts_had_none_is_told() -> None:
    one = TraceJob("a", 0, MINUTE, 1, "x")
    told = [(5, Told(0, 10_000, False)), (50_000, Told(10, 20_000, False)), (50, Told(0, 10**12, True)), (7, None)]
    lives = [Life(one, started_ms=at, eta=eta) for at, eta in told]
    assert eta_of(lives) == EtaView(predicted=2, coverage=0.5, width_s=10.0, without=1 - 2 / 3)
    assert eta_of(lives[2:]) == EtaView(predicted=0, coverage=0.0, width_s=0.0, without=1.0)
    assert eta_of(lives[3:]) is None


def test_weighted_max_min_gives_what_one_leaves_to_the_others() -> None:
    shares = fair_shares({"a": 1, "b": 10, "c": 10}, {"a": 1, "b": 1, "c": 3}, 10)
    assert shares == {"a": 1, "b": pytest.approx(9 / 4), "c": pytest.approx(27 / 4)}


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=500))
def test_a_distribution_only_rises_and_ends_at_all(times: list[int]) -> None:
    points = cdf(times)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(points))
    assert points[-1][1] == 1.0


def test_means_over_spans_keep_the_integral() -> None:
    points = buckets([0, 10, 95], [4, 0, 8], 100, 10)
    assert sum(value for _, value in points) * 10 == pytest.approx(4 * 10 + 8 * 5)


def test_the_page_is_one_file_without_scripts_or_network_and_escapes_names() -> None:
    hostile = "<script>alert(1)</script>"
    found, outcome = reported([TraceJob(hostile, 0, MINUTE, 8, hostile), TraceJob("b", 0, MINUTE, 8, "b")], name=hostile)
    text = page(found, outcome, Policy())
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    assert text.index(ALONE) < text.index("<title>")
    assert text.count("<svg") == text.count("</svg>") == 6
    assert text.count("There is nothing to draw.") == 1, "no share of tenants is known"
    for title in ("Held devices over time", "The line over time", "Submission to end", "Where every device-second went", "Tenants"):
        assert title in text
    for label in ("share of devices", "minutes since the first submission", "share of jobs"):
        assert label in text
    assert "prefers-color-scheme:dark" in text


def test_the_page_tells_what_jobs_waited_for_and_why_gangs_were_ended() -> None:
    found, outcome = reported([TraceJob("a", 0, MINUTE, 8)])
    assert "Evictions by cause" not in page(found, outcome, Policy())
    found = replace(found, evictions=1, evicted_for={"priority": 1}, blocked_by={"no_room": 3, "behind": 1}, notes=("Of <FOO>.",))
    text = page(found, outcome, Policy())
    for told in ("What waiting jobs waited for", "no room", "75.0%", "Evictions by cause", "priority", ">1</b><span>eviction;"):
        assert told in text
    assert "1 job over" in text
    assert "8 devices on 1 node." in text
    assert "<p>Of &lt;FOO&gt;.</p>" in text


def test_the_page_names_the_jobs_that_can_never_fit_and_says_where_there_is_nothing_to_draw() -> None:
    found, outcome = reported([TraceJob("giant", 0, MINUTE, 64)])
    text = page(found, outcome, Policy())
    assert "Jobs that never started" in text
    assert "<td>giant</td><td>64</td>" in text
    assert text.count("There is nothing to draw.") >= 4
    assert "e-07" not in text
    many = replace(found, never_fitting=23)
    assert "<p>And 22 more jobs.</p>" in page(many, outcome, Policy())


def test_a_wait_holds_until_the_next_one() -> None:
    """Half start at once, half after 1,000 s: nothing lies between."""
    x, y = Axis("wait", 1.0, 10_000.0, log=True, time=True), Axis("share", 0, 1, percent=True)
    drawn = line_plot(x, y, {"jobs": cdf([0, 0, 1_000_000, 1_000_000])}, steps=True)
    path = re.search(r'class="line s0" d="([^"]*)"', drawn)
    assert path is not None
    half, end = (TOP + HEIGHT - BOTTOM) / 2, WIDTH - RIGHT
    middle = LEFT + 0.75 * (end - LEFT)
    assert path[1].split(" ")[:3] == [f"M{LEFT:.1f},{half:.1f}", f"H{middle:.1f}", f"V{(TOP + half) / 2:.1f}"]
    assert path[1].endswith(f" H{end:.1f}")


def test_axes_are_in_units_that_people_use_and_no_tick_is_cut_off() -> None:
    axis = Axis("wait", 1.0, 1_000_000.0, log=True, time=True)
    assert [axis.show(tick) for tick in axis.ticks()] == ["1 s", "10 s", "1 min", "10 min", "1 h", "10 h", "1 d", "10 d"]
    assert Axis("n", 0, 2_000_000).show(1_500_000) == "1.5M"
    edge = line_plot(Axis("n", 0, 500_000), Axis("share", 0, 1), {"jobs": [(0.0, 0.5), (1.0, 0.5)]})
    assert f'<text class="end" x="{WIDTH}" y="240">500k</text>' in edge
    for span_ms, unit in ((3_600_000, "minutes"), (10 * 3_600_000, "hours"), (600 * 3_600_000, "days")):
        found, outcome = reported([TraceJob("a", 0, span_ms, 8)])
        assert f"{unit} since the first submission" in page(found, outcome, Policy())


@given(st.integers(2, 10**9))
def test_no_ticks_collide_where_a_plot_is_small_and_its_text_large(high: int) -> None:
    """Those of class `thin` are not shown there. None lies in the text of the axis beside it either."""
    axes = (Axis("wait", 1.0, float(max(10, high)), log=True, time=True), Axis("n", 0, float(high)))
    for x in axes:
        drawn = line_plot(x, Axis("waiting", 0, float(high)), {"jobs": [(1.0, 0.5), (2.0, 0.5)]})
        found = re.findall(rf'<text class="([a-z ]+)" x="([0-9.]+)" y="{HEIGHT - BOTTOM + 24}">([^<]*)<', drawn)
        shown = [(kind, float(at), CHAR * len(said)) for kind, at, said in found if "thin" not in kind]
        spans = [(at - width if kind == "end" else at - width / 2, width) for kind, at, width in shown]
        assert len(spans) >= min(2, len(found))
        assert all(begin + width <= after for (begin, width), (after, _) in pairwise(spans))
        assert all(begin + width <= WIDTH for begin, width in spans)
        beside = re.findall(rf'<text class="end" x="{LEFT - 6}" y="[0-9.]+">([^<]*)<', drawn)
        assert all(CHAR * len(said) <= LEFT - 6 for said in beside)


def test_bars_say_whole_names_however_narrow_the_page() -> None:
    name = "a-very-long-tenant-name-of-somebody"
    drawn = bar_plot("held over its share", [(name, 0.5, "0.50"), ("<b>", 0.0, "0")], {name: 1.0})
    assert f'title="{name}">{name}<' in drawn and "&lt;b&gt;" in drawn
    assert 'style="width:50.00%"' in drawn and 'style="left:100.00%"' in drawn
    assert "Held over its share." in drawn


def reported(
    jobs: list[TraceJob], cluster: str = "H100:8x1", policy: Policy = DEFAULT, name: str = "t"
) -> tuple[SimReport, Outcome]:
    trace = Trace.of(name, jobs)
    outcome = Replay(trace, cluster_of(cluster, trace), Setup(policy=policy, costs=FREE, interval_ms=1), deciding()).run()
    found = report(outcome, trace, policy, policy_name="default", limits="trace", seed=0, wall_s=0.0)
    return found, outcome
