"""Traces that somebody asks for while a rank trains: taken before their first step, and else left out with a word."""

from dataclasses import replace
from pathlib import Path
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
from phalanx.job.train.traces.traced import Traced, traced
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


@pytest.mark.parametrize(("first", "said"), [(8, []), (9, [(1, 10, "the gang recovered, and goes on after step 10")])])
def test_a_process_that_has_just_taken_the_rank_says_only_what_was_cut_off(
    place: Place, first: int, said: list[tuple[int, int, str]]
) -> None:
    place.ask(1, first=first, count=3)
    place.at(11, 12)
    assert place.missed() == said and place.traces() == []


def test_a_gang_that_goes_back_before_the_first_step_traces_it_again(place: Place) -> None:
    place.ask(1, first=12, count=1)
    place.at(11, 12)
    place.requested.drop()
    assert place.traces() == []
    successor = Requested(place.session, 1, Profile(place.folder / "artifacts", 1, torch.device("cpu")))
    place.profile, place.requested = successor._profile, successor
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
    for thread in place.profile._writing:
        thread.join(WAIT_S)
    place.at(4)
    monkeypatch.setattr("phalanx.job.train.traces.profile.record_function", None)
    place.ask(2, first=6, count=1)
    place.at(5, 6, 7, 8)
    (first, _, unwritten), (second, _, failed) = place.missed()
    assert (first, second) == (1, 2)
    assert "it could not be written" in unwritten and "its profiler failed (TypeError" in failed


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
