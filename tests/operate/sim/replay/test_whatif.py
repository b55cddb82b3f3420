"""A saved snapshot under another policy: who gains, who loses, and files that are none."""

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core import wire
from phalanx.core.devices import DeviceRequest, NodeSlice, Placement
from phalanx.core.errors import DataError, SpecError
from phalanx.core.ids import JobId, NodeId, attempt_id
from phalanx.core.policy_parse import load_policy
from phalanx.decide.scheduler import JobFacts, PendingJob, RunningJob, Shape, Snapshot
from phalanx.operate.sim.replay.cluster import cluster_of
from phalanx.operate.sim.replay.whatif import what_if
from phalanx.operate.sim.traces.trace import Trace

NOW = 1_790_000_000_000


def test_a_limit_on_one_queue_lets_the_other_start(tmp_path: Path) -> None:
    """Eight devices, two jobs of eight: the older one starts, unless its queue may hold no more than four."""
    file = saved(tmp_path, pending("old-1", "vision", 8, age=2), pending("new-2", "speech", 8, age=1))
    policy = written(tmp_path / "p.yaml", "queues: {vision: {limit: {H100: 4}}}")
    view = what_if(str(file), str(policy))
    assert (view.devices, view.running, view.pending, view.at_ms) == (8, 0, 2, NOW)
    assert (view.own.starts, view.other.starts) == (1, 1)
    assert (view.own.held, view.other.held) == ({"vision": 8}, {"speech": 8})
    assert [(move.job, move.verdict) for move in view.moves] == [("new-2", "gains"), ("old-1", "loses")]
    assert view.moves[0].after == "starts now on 8 devices"
    assert view.moves[1].before == "starts now on 8 devices"
    assert "limit" in view.moves[1].after


def test_the_same_policy_moves_nobody(tmp_path: Path) -> None:
    file = saved(tmp_path, pending("a-1", "vision", 8, age=2), pending("b-2", "vision", 8, age=1))
    view = what_if(str(file), str(written(tmp_path / "p.yaml", "{}")))
    assert view.moves == ()
    assert replace(view.own, policy="") == replace(view.other, policy="")


def test_a_gang_that_would_be_ended_loses(tmp_path: Path) -> None:
    """Preemption is off where it was saved, and on in the other policy."""
    holds = Placement((NodeSlice(NodeId("h100-00001"), tuple(range(8))),))
    low = JobFacts(JobId("low-1"), Shape(DeviceRequest((), 8)), priority=10, submitted_ms=NOW - 9_000_000)
    running = RunningJob(low, attempt_id(low.job, 1), holds, NOW - 8_000_000, saved_ms=NOW - 600_000)
    file = saved(
        tmp_path, pending("high-2", "default", 8, age=1, priority=90), running=(running,), policy="preemption: {enabled: false}"
    )
    view = what_if(str(file), str(written(tmp_path / "p.yaml", "preemption: {enabled: true}")))
    assert (view.own.evictions, view.other.evictions) == (0, 1)
    assert view.other.lost_gpu_hours > 0
    moves = {move.job: move for move in view.moves}
    assert moves["low-1"].verdict == "loses"
    assert moves["low-1"].before == "goes on"
    assert "is ended for high-2 (priority)" in moves["low-1"].after
    assert moves["high-2"].verdict == "gains"


def test_a_job_that_can_never_start_any_more_loses(tmp_path: Path) -> None:
    file = saved(tmp_path, pending("a-1", "a", 8, age=2), pending("b-2", "a", 8, age=1))
    view = what_if(str(file), str(written(tmp_path / "p.yaml", "queues: {a: {limit: {'*': 6}}}")))
    moves = {move.job: (move.verdict, move.place_before, move.place_after) for move in view.moves}
    assert moves == {"a-1": ("loses", None, None), "b-2": ("loses", 1, None)}


def test_a_better_place_is_told_with_the_places(tmp_path: Path) -> None:
    jobs = [pending(f"j-{number}", "a", 8, age=9 - number) for number in (1, 2, 3)]
    small = replace(jobs[2], facts=replace(jobs[2].facts, expected_ms=60_000))
    file = saved(tmp_path, jobs[0], jobs[1], small)
    view = what_if(str(file), str(written(tmp_path / "p.yaml", "order: shortest")))
    moves = {move.job: (move.verdict, move.place_before, move.place_after) for move in view.moves}
    assert moves == {"j-3": ("gains", 2, None), "j-1": ("loses", None, 1), "j-2": ("loses", 1, 2)}


def test_what_the_fleet_of_the_snapshot_cannot_keep_is_said(tmp_path: Path) -> None:
    file = saved(tmp_path, pending("a-1", "vision", 8, age=2))
    policy = "queues: {a: {quota: {'*': 10}}, b: {quota: {'*': 10}}, c: {cells: {type: H100, count: 9}}}"
    quota, cells = what_if(str(file), str(written(tmp_path / "p.yaml", policy))).notes
    assert quota.startswith("The policy promises what this cluster cannot keep: queues.a.quota.* is 10: 20 ")
    assert "cells" in cells


def test_what_is_no_snapshot_or_no_policy_is_named(tmp_path: Path) -> None:
    policy = written(tmp_path / "p.yaml", "{}")
    with pytest.raises(DataError, match=r"absent\.json.*cannot be read"):
        what_if(str(tmp_path / "absent.json"), str(policy))
    for content in ('{"now_ms": "soon"}', "{}", "no JSON"):
        with pytest.raises(DataError) as caught:
            what_if(str(written(tmp_path / "s.json", content)), str(policy))
        assert caught.value.fix == "is no saved snapshot of this version; `phalanx why JOB --save-snapshot FILE` saves one"
    with pytest.raises(SpecError, match="queue"):
        what_if(str(saved(tmp_path)), str(written(tmp_path / "bad.yaml", "queue: {}")))


def pending(name: str, queue: str, devices: int, *, age: int, priority: int = 50) -> PendingJob:
    submitted_ms = NOW - age * 60_000
    shape = Shape(DeviceRequest((), devices))
    return PendingJob(JobFacts(JobId(name), shape, queue, priority, submitted_ms, sequence=10 - age), since_ms=submitted_ms)


def saved(folder: Path, *jobs: PendingJob, running: tuple[RunningJob, ...] = (), policy: str = "{}") -> Path:
    nodes = cluster_of("H100:8x1", Trace("t", ()))
    if running:
        nodes = tuple(replace(node, free=()) for node in nodes)
    snapshot = Snapshot(NOW, nodes, running, jobs, load_policy(written(folder / "own.yaml", policy)))
    return written(folder / "snapshot.json", wire.dumps(Snapshot, snapshot))


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file
