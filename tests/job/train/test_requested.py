"""Traces that somebody asks for while a rank trains: taken before their first step, and else left out with a word."""

from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import phalanx
from phalanx.core import wire
from phalanx.core.records import RankRecord
from phalanx.core.spec import ProfileSpec
from phalanx.core.trace_request import TRACES, TraceMissed, TraceRequest
from phalanx.job.sdk import attach
from phalanx.job.train.traces.profile import Profile
from phalanx.job.train.traces.requested import Requested
from phalanx.job.train.traces.traced import Traced, finish_traces, traced
from phalanx.job.train.watch import Watch

WAIT_S = 300


class Place:
    """One attempt's folder, in which rank 1 trains."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {
            "RANK": "1", "PHALANX_RECORDS": str(folder / "rank-1.records"), "PHALANX_REQUESTS": str(folder),
            "PHALANX_ARTIFACTS": str(folder / "artifacts"),
        }  # fmt: skip
        self.session = attach(self.env)
        self.profile = Profile(folder / "artifacts", 1, torch.device("cpu"))
        self.requested = Requested(self.session, 1, self.profile)

    def ask(self, number: int, first: int, count: int = 2, ranks: tuple[int, ...] = ()) -> None:
        staged = self.folder / "staged"
        staged.write_text(wire.dumps(TraceRequest, TraceRequest(number=number, first=first, count=count, ranks=ranks)))
        staged.replace(self.folder / TRACES)

    def at(self, *steps: int) -> None:
        for step in steps:
            self.requested.at(step)
            self.profile.at(step)

    def missed(self) -> list[tuple[int, int, str]]:
        lines = (self.folder / "rank-1.records").read_text().splitlines()
        facts = [fact for fact in (wire.loads(RankRecord, line) for line in lines) if isinstance(fact, TraceMissed)]
        return [(fact.number, fact.step, fact.why) for fact in facts]

    def next_generation(self) -> None:
        """In this same process."""
        self.profile = Profile(self.folder / "artifacts", 1, torch.device("cpu"))
        self.requested = Requested(self.session, 1, self.profile)

    def written(self) -> None:
        for thread in self.profile._writing:
            thread.join(WAIT_S)

    def traces(self) -> list[str]:
        self.profile.close(wait_s=WAIT_S)
        return sorted(path.name for path in (self.folder / "artifacts" / "profile").glob("*.gz"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_one_request_after_the_other_is_traced_from_its_first_step_on(place: Place) -> None:
    place.at(1, 2)
    place.ask(1, first=4)
    place.at(3, 4, 5)
    place.ask(2, first=6, count=1)
    place.at(6, 7, 8)
    assert place.traces() == ["rank-1-steps-4-5.trace.json.gz", "rank-1-steps-6-6.trace.json.gz"]
    assert place.missed() == []


def test_who_hears_of_it_too_late_or_is_not_meant_leaves_no_trace(place: Place) -> None:
    place.at(1, 2)
    place.ask(1, first=2)
    place.at(3)
    place.ask(2, first=9, ranks=(0, 2))
    place.at(4, 9, 10, 11)
    assert place.missed() == [(1, 2, "it was at step 2 when it heard of steps 2 to 3")]
    assert place.traces() == []


FELL = "its process fell, or the gang recovered, before it was written"


@pytest.mark.parametrize(
    ("first", "ranks", "summary", "said"),
    [
        (9, (), "", ["the gang recovered, and goes on after step 10"]),
        (8, (), "rank-1-steps-8-10.summary.json", []),
        (8, (), "rank-1-steps-8-9.summary.json", [FELL]),
        (8, (0, 2), "", []),
    ],
)
def test_a_process_that_has_just_taken_the_rank_says_what_was_cut_off_or_fell_with_the_one_before(
    place: Place, first: int, ranks: tuple[int, ...], summary: str, said: list[str]
) -> None:
    place.ask(1, first=first, count=3, ranks=ranks)
    if summary:
        (place.folder / "artifacts" / "profile").mkdir(parents=True)
        (place.folder / "artifacts" / "profile" / summary).touch()
    place.at(11, 12)
    assert place.missed() == [(1, 10, why) for why in said] and place.traces() == []


def test_a_gang_that_goes_back_before_the_first_step_traces_it_again(place: Place) -> None:
    place.ask(1, first=12, count=1)
    place.at(11, 12)
    place.requested.drop()
    assert place.traces() == []
    place.next_generation()
    place.at(11, 12, 13)
    assert place.traces() == ["rank-1-steps-12-12.trace.json.gz"] and place.missed() == []


def test_an_error_drops_what_was_asked_for_and_keeps_what_the_job_s_file_asked_for(place: Place) -> None:
    def cut_off(profile: ProfileSpec, step: int) -> None:
        training: Any = SimpleNamespace(
            session=replace(place.session, profile=profile), rank=SimpleNamespace(slot=1, device=torch.device("cpu")),
            model=torch.nn.Identity(), watch=Watch(), traces=[],
        )  # fmt: skip
        made: list[Traced] = []
        with pytest.raises(RuntimeError, match="a peer fell"), traced(training, step - 1) as trace:
            made.append(trace)
            trace.at(step)
            raise RuntimeError("a peer fell")
        made[0].close(wait_s=WAIT_S)

    place.ask(1, first=1)
    cut_off(ProfileSpec(first=3, count=1), 1)
    assert place.traces() == []
    cut_off(ProfileSpec(first=3, count=1), 3)
    assert place.traces() == ["rank-1-steps-3-3.trace.json.gz"]


def test_a_profiler_that_fails_and_a_trace_that_cannot_be_written_are_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    place.ask(1, first=2, count=1)
    place.at(1, 2, 3)
    place.written()
    place.at(4)
    monkeypatch.setattr("phalanx.job.train.traces.profile.record_function", None)
    place.ask(2, first=6, count=1)
    place.at(5, 6, 7, 8)
    (first, _, unwritten), (second, _, failed) = place.missed()
    assert (first, second) == (1, 2)
    assert "it could not be written" in unwritten and "its profiler failed (TypeError" in failed


def test_an_earlier_request_that_fails_is_said_though_later_ones_are_taken_and_the_gang_recovered(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = Event()

    def unwritable(*_: object) -> str:
        go_on.wait(WAIT_S)
        return "the disk is full"

    monkeypatch.setattr(Profile, "_sum_up", unwritable)
    place.ask(1, first=2, count=1)
    place.at(1, 2, 3)
    place.ask(2, first=5, count=1)
    place.at(4)
    first = place.profile
    place.requested.drop()
    place.next_generation()
    place.at(4, 5, 6)
    assert place.missed() == [], "both are still being written"
    go_on.set()
    for thread in [*first._writing, *place.profile._writing]:
        thread.join(WAIT_S)
    place.at(7)
    assert place.missed() == [(1, 6, "the disk is full"), (2, 6, "the disk is full")]
    place.next_generation()
    place.at(7, 8)
    assert len(place.missed()) == 2, "each is said once"


def test_what_is_being_written_at_the_end_of_a_generation_fails_no_trace(place: Place) -> None:
    place.ask(1, first=2, count=1)
    place.at(1, 2, 3)
    first = place.profile
    place.requested.drop()
    place.next_generation()
    place.at(3, 4)
    first.close(wait_s=WAIT_S)
    place.at(5)
    assert place.missed() == [] and place.traces() == ["rank-1-steps-2-2.trace.json.gz"]
    assert place.session.requests is not None and not place.session.requests.taken, "and then it is forgotten"


def test_a_profiler_that_fails_takes_nothing_back_that_was_traced_before(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.ask(1, first=2, count=1)
    place.at(1, 2, 3)
    monkeypatch.setattr("phalanx.job.train.traces.profile.record_function", None)
    place.profile.ask(5, 1, 4)
    place.at(4, 5, 6)
    assert "its profiler failed" in place.profile.failure(5) and place.missed() == []
    place.ask(2, first=8, count=1)
    place.at(7, 8)
    ((number, _, why),) = place.missed()
    assert number == 2 and "its profiler failed" in why
    assert place.traces() == ["rank-1-steps-2-2.trace.json.gz"]


def test_what_an_error_left_recording_on_a_gpu_is_stopped_before_the_next_generation_s_first_step(place: Place) -> None:
    place.ask(1, first=2)
    place.at(1, 2)
    left: Any = place.profile._profiler
    place.profile._on_gpu = True  # to end it would wait for a device that may never be done
    place.requested.drop()
    place.profile.close(failed=True)
    assert not left.profiler.kineto_results, "it records on"
    place.next_generation()
    place.at(3)
    assert left.profiler.kineto_results
    place.ask(2, first=5, count=1)
    place.at(4, 5, 6)
    assert place.traces() == ["rank-1-steps-5-5.trace.json.gz"]
    assert place.missed() == [(1, 2, "the gang recovered, and goes on after step 2")]


def test_what_fails_after_the_last_step_is_said_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    training: Any = SimpleNamespace(
        session=replace(place.session, profile=None), rank=SimpleNamespace(slot=1, device=torch.device("cpu")),
        model=torch.nn.Identity(), watch=Watch(), traces=[],
    )  # fmt: skip
    place.ask(1, first=1, count=1)
    with traced(training, 0) as trace:
        trace.at(1)
    finish_traces(training, WAIT_S)
    ((number, _, why),) = place.missed()
    assert number == 1 and "it could not be written" in why


def test_of_a_script_what_fails_at_its_end_is_said_and_an_error_drops_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, place: Place
) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    for name, value in place.env.items():
        if name != "RANK":  # alone it is the first
            monkeypatch.setenv(name, value)
    place.ask(1, first=1, count=1)
    with pytest.raises(RuntimeError, match="a peer fell"), phalanx.run() as run:
        run.begin(0)
        raise RuntimeError("a peer fell")
    assert run._profile._writing == [] and place.missed() == []
    with phalanx.run() as run:
        run.begin(0)
        run.log(1)
    ((number, step, why),) = place.missed()
    assert (number, step) == (1, 1) and "it could not be written" in why


def test_a_script_s_own_wish_does_not_meet_that_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in place.env.items():
        if name != "RANK":  # alone it is the first
            monkeypatch.setenv(name, value)
    with phalanx.run() as run:
        run.begin(0)
        place.ask(1, first=3)
        run.log(1)
        run.profile(first=4)
        run.profile(first=7, count=1)
        for step in range(2, 6):
            run.log(step)
        place.ask(2, first=7)
        for step in range(6, 10):
            run.log(step)
    folder = place.folder / "artifacts" / "profile"
    assert sorted(path.name for path in folder.glob("*.gz")) == [
        "rank-0-steps-3-4.trace.json.gz",
        "rank-0-steps-7-7.trace.json.gz",
    ]
    assert "steps 4 to 6 are not traced for the script" in caplog.text
    ((number, _, why),) = place.missed()
    assert number == 2 and "steps 7 to 7 are asked for already" in why


def test_a_script_that_says_only_some_of_its_steps_has_none_to_trace_between_them(place: Place) -> None:
    place.at(11)
    place.ask(1, first=15)
    place.at(12, 21, 31)
    assert place.missed() == [(1, 30, "its script does not say each of its steps: none of 15 to 16 was")]
    assert place.traces() == []
