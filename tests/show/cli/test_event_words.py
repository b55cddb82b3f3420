"""What happened, in words: every kind of event has a sentence, and no two kinds read alike."""

import dataclasses
from dataclasses import replace
from typing import Any, get_args, get_type_hints

import pytest

from phalanx.core import wire
from phalanx.core.chaos import Asked, FaultMet, planned
from phalanx.core.devices import Device, NodeShape, NodeSlice, Placement
from phalanx.core.events import (
    AttemptEnded,
    AttemptPlaced,
    AttemptRunning,
    DevicesClaimed,
    EventBody,
    FaultPlanned,
    IdleOver,
    IdleWarned,
    JobCollected,
    JobEvicted,
    JobResumed,
    JobRetried,
    JobSubmitted,
    JobWaits,
    ModelRegistered,
    NodeAway,
    NodeDrained,
    NodeUndrained,
    NodeUp,
    PartLost,
    PartReleased,
    PolicySet,
    RankSaid,
    StopRequested,
    StragglerFound,
    TracesRequested,
)
from phalanx.core.health import BadSample, Corruption, DamagedData, LossSpike, LostEvidence, ReadTrouble, SaveTrouble, Straggler
from phalanx.core.ids import AttemptId, JobId, NodeId
from phalanx.core.messages import RankProcess
from phalanx.core.policy import Policy
from phalanx.core.reasons import NoRoom
from phalanx.core.records import CheckpointCommitted, ModelSaved, RankFact, Recovered, Resumed
from phalanx.core.spec import JobSpec, Resources
from phalanx.core.states import StopCause
from phalanx.core.trace_request import TraceMissed, TraceRequest
from phalanx.core.views import EventView
from phalanx.decide.scheduler import Evict
from phalanx.show.cli.event_lines import event_line
from phalanx.show.cli.event_words import words

KINDS = get_args(get_args(EventBody)[0])
NODE, JOB, ATTEMPT = NodeId("node-a"), JobId("tiny-lm-7"), AttemptId("tiny-lm-7.2")
SHAPE = NodeShape(NODE, "10.0.0.7", tuple(Device(i, "H100", "H100") for i in range(8)), 8.0, 2**30, (20_001, 20_064))
BIG = JobId("big-9")
QUARTER = Placement((NodeSlice(NODE, (3,), 250),))
PLACEMENT = Placement((NodeSlice(NODE, (0, 1)), NodeSlice(NodeId("node-b"), (3,))))
SAVED = ModelSaved(rank=0, step=9, path="/m", weights_digest="3e" * 32, metrics={}, lineage={}, at_ms=1)
FAULT = planned(Asked(fault="kill-rank", rank=1, step=40), 3)
MET = FaultMet(rank=1, step=40, number=3, fault="kill-rank", late=False, at_ms=1)
CHECKPOINT = CheckpointCommitted(rank=0, step=20, path="/c", digest="d1" * 32, size_bytes=3 << 20, at_ms=1)
RECOVERED = Recovered(
    rank=0,
    step=36,
    generation=2,
    why="rank 0 was killed by SIGKILL",
    replaced=(0,),
    pids=(77,),
    steps_lost=1,
    recovery_ms=397,
    at_ms=9,
)
RESUMED = Resumed(rank=0, step=20, checkpoint="d1" * 32, skipped=("step-40",), at_ms=1)
DAMAGED = DamagedData(rank=0, step=12, source="web", shard="5d41402abc4b2a76", blocks=(3,), samples=512, at_ms=1)
SPIKE = LossSpike(
    rank=0, step=70, measured=9.3125, norm=40.0, usual=4.0, limit=4.5, action="skip", weights_of=69, samples=(1104, 1119),
    worst=(BadSample(sample=1107, row=311, loss=31.25), BadSample(sample=1104, row=9, loss=None)), at_ms=1,
)  # fmt: skip
CORRUPT = Corruption(rank=0, step=1000, place="gradients", name="norm.weight", ranks=(1,), certain=True, at_ms=1)
STRAGGLER = Straggler(
    rank=1, node=NODE, device=1, step=31, ratio=1.52, slow=24, steps=25, local_us=61_000, peers_us=40_100, quarantined=True, at_ms=1
)
TROUBLE = SaveTrouble(rank=1, step=400, lost=False, reason="s3://bkt: the store does not answer; try again", at_ms=1)
SPEC = JobSpec(name="tiny-lm", entrypoint=("true",), num_nodes=2, resources=Resources(gpus="4"))

TOLD: list[tuple[EventBody, str, str]] = [
    (JobSubmitted(JOB, SPEC, "", "c0", "ann"), JOB, "submitted by ann: asks for 4 devices on each of 2 nodes, queue default"),
    (JobWaits(JOB, NoRoom(2, 0, 2)), JOB, "waits for devices: asks for 2 at once, 0 free, 2 held by running jobs"),
    (AttemptPlaced(JOB, ATTEMPT, PLACEMENT, 20_001, 3), ATTEMPT, "placed on node-a (devices 0, 1) and node-b (device 3)"),
    (
        AttemptPlaced(JOB, ATTEMPT, dataclasses.replace(PLACEMENT, borrowed=True), 20_001, 3),
        ATTEMPT,
        "placed on node-a (devices 0, 1) and node-b (device 3), borrowed beyond the cells of its queue",
    ),
    (AttemptRunning(JOB, ATTEMPT, (RankProcess(0, 10),)), ATTEMPT, "running: 1 rank up"),
    (StopRequested(JOB, "pause", "ann"), JOB, "asked to pause, by ann"),
    (
        AttemptEnded(JOB, ATTEMPT, False, True, "rank 1 fell", ()),
        ATTEMPT,
        "ended, another attempt follows: rank 1 fell",
    ),
    (PartLost(JOB, ATTEMPT, NODE, "its lease is over"), ATTEMPT, "lost its part on node-a: its lease is over"),
    (PartReleased(JOB, ATTEMPT, NODE), ATTEMPT, "goes on without node-a, and holds nothing there any more"),
    (JobResumed(JOB, "ann"), JOB, "resumed by ann"),
    (JobRetried(JOB, "ann"), JOB, "opened again by ann, with all its restarts before it"),
    (JobCollected(JOB, "ann"), JOB, "its files were collected by ann"),
    (RankSaid(JOB, ATTEMPT, CHECKPOINT), ATTEMPT, "checkpoint at step 20, 3.0 MiB"),
    (FaultPlanned(JOB, ATTEMPT, FAULT, "ann"), ATTEMPT, "fault 3 asked for by ann: kill-rank of rank 1 at step 40"),
    (RankSaid(JOB, ATTEMPT, MET), ATTEMPT, "fault 3: kill-rank met by rank 1 at step 40"),
    (
        RankSaid(JOB, ATTEMPT, replace(MET, late=True, step=41)),
        ATTEMPT,
        "fault 3: kill-rank not met: rank 1 was at step 41 when it heard of it",
    ),
    (
        TracesRequested(JOB, ATTEMPT, TraceRequest(number=2, first=40, count=3), "ann"),
        ATTEMPT,
        "traces of steps 40 to 42 asked for by ann, of all ranks (request 2)",
    ),
    (
        IdleWarned(JOB, ATTEMPT, 300_000, "terminal: 25m 00s ago"),
        ATTEMPT,
        "idle: stopped in 5m 00s unless something is done in it; terminal: 25m 00s ago",
    ),
    (IdleOver(JOB, ATTEMPT, "terminal: now"), ATTEMPT, "not idle any more: terminal: now"),
    (
        StragglerFound(JOB, ATTEMPT, STRAGGLER),
        ATTEMPT,
        "rank 1 (node-a, device 1) is a straggler: 1.52 times its peers in 24 of 25 steps up to 31 (61.0 ms a step, "
        "peers 40.1 ms); its node is drained and the job moves",
    ),
    (NodeUp(SHAPE, "boot"), "node node-a", "up with 8 x H100 at 10.0.0.7"),
    (NodeAway(NODE), "node node-a", "away: nothing was heard of it"),
    (NodeDrained(NODE, "new disk", "ann"), "node node-a", "drained by ann: new disk"),
    (NodeUndrained(NODE, "ann"), "node node-a", "undrained by ann"),
    (ModelRegistered("tiny-lm", 3, JOB, ATTEMPT, SAVED, {}), ATTEMPT, "registered model tiny-lm:3"),
    (PolicySet(Policy(), "ann"), "policy", "set by ann"),
    (DevicesClaimed(JOB, PLACEMENT), JOB, "kept for it: node-a (devices 0, 1) and node-b (device 3)"),
    (JobEvicted(JOB, ATTEMPT, BIG, "priority", 7), JOB, "asked to make room for big-9, which is of a higher class"),
]


def seen(event: EventBody, **changes: Any) -> EventView:
    plain = wire.plain(EventBody, event)
    view = EventView(seq=1, at_ms=1_000, kind=event.kind, job=getattr(event, "job", None), body=plain)
    return dataclasses.replace(view, **changes)


def test_every_kind_of_event_has_a_line_here() -> None:
    assert {type(body) for body, _, _ in TOLD} == set(KINDS)


@pytest.mark.parametrize(("body", "subject", "sentence"), TOLD, ids=lambda one: getattr(one, "kind", ""))
def test_every_event_is_said_in_words(body: EventBody, subject: str, sentence: str) -> None:
    assert words(seen(body)) == (subject, sentence)


@pytest.mark.parametrize(
    ("fact", "sentence"),
    [
        (RESUMED, "resumed after step 20; skipped 1 damaged checkpoint"),
        (dataclasses.replace(RESUMED, skipped=()), "resumed after step 20"),
        (RECOVERED, "recovered in 0.4 s: rank 0 was killed by SIGKILL; generation 2 goes on after step 36, 1 step made again"),
        (dataclasses.replace(RECOVERED, steps_lost=0, why="x"), "recovered in 0.4 s: x; generation 2 goes on after step 36"),
        (
            dataclasses.replace(RECOVERED, steps_lost=0, why="x", absent=tuple(range(2, 12))),
            "recovered in 0.4 s: x; generation 2 goes on after step 36 without ranks 2, 3, 4, 5, 6, 7, 8, 9 and 2 more",
        ),
        (
            dataclasses.replace(RECOVERED, steps_lost=0, why="x", generation=3, planned=True),
            "grew in 0.4 s: x; generation 3 goes on after step 36",
        ),
        (SAVED, "saved its model at step 9"),
        (
            TraceMissed(rank=1, step=41, number=2, why="it was at step 41 when it heard of steps 40 to 42", at_ms=1),
            "rank 1 leaves no trace of request 2: it was at step 41 when it heard of steps 40 to 42; training goes on",
        ),
        (CHECKPOINT, "checkpoint at step 20, 3.0 MiB"),
        (
            SPIKE,
            "loss 9.312 at step 70, usually 4: update skipped; samples 1104 to 1119, worst 1107 (row 311, loss 31.25), "
            "1104 (row 9, loss no number)",
        ),
        (
            dataclasses.replace(SPIKE, measured=None, usual=None, action="rollback", weights_of=60, worst=()),
            "loss no finite number at step 70: back to the weights of step 60, 10 steps of data skipped; "
            "samples 1104 to 1119, worst -",
        ),
        (
            dataclasses.replace(SPIKE, norm=None, action="stop", worst=()),
            "gradients that are no finite number at step 70 (loss 9.312): stopped; samples 1104 to 1119, worst -",
        ),
        (CORRUPT, "rank 1 is corrupt: other gradients than its peers from the same weights and samples at step 1000 (norm.weight)"),
        (
            TROUBLE,
            "rank 1 cannot write the checkpoint of step 400 yet: s3://bkt: the store does not answer; try again; training goes on",
        ),
        (
            ReadTrouble(rank=0, wait_s=600, reason="s3://bkt: the store does not answer; try again", at_ms=1),
            "rank 0 cannot read the job's checkpoints yet: s3://bkt: the store does not answer; try again; it asks again for "
            "600 s, and training waits",
        ),
        (
            DAMAGED,
            "block 3 of shard 5d41402abc4b of web is damaged: from step 12 on other samples stand in for the 512 that need it",
        ),
        (
            dataclasses.replace(DAMAGED, blocks=tuple(range(8, 18))),
            "blocks 8, 9, 10, 11, 12, 13, 14, 15 and 2 more of shard 5d41402abc4b of web cannot be read: from step 12 on other "
            "samples stand in for the 512 that need them",
        ),
        (
            LostEvidence(rank=2, step=12, reason="No space left on device", at_ms=1),
            "what rank 2 is given cannot be recorded from step 12 on: No space left on device; `phalanx data audit` will miss it, "
            "and training goes on",
        ),
        (
            dataclasses.replace(TROUBLE, lost=True, reason="rank 1: No space left on device"),
            "the checkpoint of step 400 was given up: rank 1: No space left on device; older ones stay, and training goes on",
        ),
        (
            dataclasses.replace(CORRUPT, place="state", ranks=(0, 1), certain=False),
            "ranks 0, 1 differ, and which of them is corrupt is not known: another replica of the state than its peers at step "
            "1000 (norm.weight)",
        ),
        (
            dataclasses.replace(CORRUPT, place="memory", name="", ranks=(1, 2)),
            "ranks 1, 2 are corrupt: weights or moments that changed between two updates at step 1000",
        ),
        (
            dataclasses.replace(CORRUPT, place="weights"),
            "rank 1 is corrupt: other weights than its peers after they were gathered at step 1000 (norm.weight)",
        ),
    ],
)
def test_every_fact_of_a_rank_is_said_in_words(fact: RankFact, sentence: str) -> None:
    assert words(seen(RankSaid(JOB, ATTEMPT, fact))) == (ATTEMPT, sentence)


def test_the_facts_above_are_all_there_are() -> None:
    assert set(get_args(RankFact)) == {
        Resumed,
        Recovered,
        CheckpointCommitted,
        ModelSaved,
        LossSpike,
        Corruption,
        SaveTrouble,
        ReadTrouble,
        DamagedData,
        LostEvidence,
        FaultMet,
        TraceMissed,
    }


@pytest.mark.parametrize("cause", get_args(StopCause))
def test_every_cause_to_stop_has_words_of_its_own(cause: StopCause) -> None:
    others = {words(seen(StopRequested(JOB, one, "ann")))[1] for one in get_args(StopCause) if one != cause}
    assert words(seen(StopRequested(JOB, cause, "ann")))[1] not in others


def test_every_cause_of_an_eviction_has_words_of_its_own() -> None:
    causes = get_args(get_type_hints(Evict)["cause"])
    said = {words(seen(JobEvicted(JOB, ATTEMPT, BIG, cause, 7)))[1] for cause in causes}
    assert len(said) == len(causes) > 5
    assert "asked to make room for big-9" not in said
    assert words(seen(JobEvicted(JOB, ATTEMPT, BIG, "of-a-newer-server", 7)))[1] == "asked to make room for big-9"


def test_a_share_is_named_with_its_part_of_the_device() -> None:
    shared = dataclasses.replace(SPEC, num_nodes=1, resources=Resources(gpus="0.25"))
    assert "asks for 0.25 of a device, queue default" in words(seen(JobSubmitted(JOB, shared, "", "c0", "ann")))[1]
    assert words(seen(AttemptPlaced(JOB, ATTEMPT, QUARTER, 20_001, 3)))[1] == "placed on node-a (0.25 of device 3)"
    assert words(seen(DevicesClaimed(JOB, None)))[1] == "gave up the devices that were kept for it"


def test_how_an_attempt_ended_is_told_apart() -> None:
    done = AttemptEnded(JOB, ATTEMPT, True, False, "every rank exited with code 0", ())
    assert words(seen(done))[1] == "done: every rank exited with code 0"
    assert words(seen(dataclasses.replace(done, ok=False)))[1].startswith("ended: ")


def test_a_kind_of_a_newer_server_is_named_at_least() -> None:
    assert words(seen(NodeAway(NODE), kind="node_painted", body={"kind": "node_painted"}, job=JOB)) == (JOB, "node painted")
    assert words(seen(NodeAway(NODE), kind="node_painted", body={})) == ("-", "node painted")


def test_a_line_has_time_subject_and_words_and_fits_the_width() -> None:
    event = seen(NodeDrained(NODE, "a long story " * 40, "ann"))
    whole = event_line(event)
    assert whole.startswith("1970-01-01 00:00:01  node node-a       drained by ann: a long story a long")
    for columns in (20, 40, 80, 200):
        cut = event_line(event, columns)
        assert len(cut) <= columns and cut.endswith("…") and whole.startswith(cut[:-1])
    wide = event_line(seen(NodeDrained(NODE, "寿司" * 60, "ann")), 80)
    assert "寿司" in wide and len(wide) < 80


def test_a_hostile_reason_cannot_steer_a_terminal() -> None:
    assert "\x1b" not in event_line(seen(NodeDrained(NODE, "\x1b[2J\nx", "ann")))
