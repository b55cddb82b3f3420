"""Agents and control planes of two releases understand each other, and an agent goes on where another release's left off."""

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from phalanx.core import devices, messages, wire
from phalanx.core.devices import Device, NodeShape
from phalanx.core.ids import AttemptId, NodeId
from phalanx.core.interruptions import WITH_BOOT
from phalanx.core.messages import (
    Activity,
    ArtifactAck,
    ArtifactSaved,
    AttemptReport,
    Forget,
    FromAgent,
    GangRecovery,
    GangStarted,
    GiveUpNode,
    Hello,
    IdleWord,
    Launch,
    OpenChannel,
    PlanFaults,
    RankExit,
    RankProcess,
    Report,
    RequestTraces,
    StartRanks,
    StopRanks,
    ToAgent,
    Welcome,
)
from phalanx.operate.agent import attempts
from phalanx.operate.agent.sockets import agent_socket, shim_socket, socket_folder
from tests.operate.agent.agent_cell import DEADLINE_S, Cell, alive, until
from tests.operate.goldens import protocol_1
from tests.ports import free_port

FRAMES = Path(__file__).parents[1] / "goldens"
RELEASE = Path(__file__).parent / "goldens" / "release_1"
"""What an agent of release 0.1.0 had on disk for an attempt that was stopped, and the shim that it started, word for word."""

WAIT = "import signal; print('up', flush=True); signal.pause()"
COUNT = """
import os, time
number = 0
while not os.path.exists(os.environ["DONE"]):
    number += 1
    with open(os.environ["PHALANX_RECORDS"], "a") as out:
        out.write(f"{number}\\n")
    time.sleep(0.02)
"""
DEMO = AttemptId("demo-1.1")


def frames(which: str) -> list[str]:
    return (FRAMES / f"protocol_1_{which}_agent.jsonl").read_text().splitlines()


def holds(new: object, old: object) -> bool:
    """Whether `new` says everything that `old` says, and the same."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and holds(new[key], value) for key, value in old.items())
    if isinstance(old, list):
        return isinstance(new, list) and len(new) == len(old) and all(map(holds, new, old))
    return new == old


def parts(kind: object) -> Iterator[type]:
    yield from get_args(get_args(kind)[0])


@pytest.mark.parametrize(("which", "kind", "old"), [("from", FromAgent, protocol_1.FromAgent), ("to", ToAgent, protocol_1.ToAgent)])
def test_frames_of_the_first_release_are_read_in_full(which: str, kind: Any, old: Any) -> None:
    lines = frames(which)
    assert {json.loads(line)["kind"] for line in lines} == {part.kind for part in map(_made, lines)}
    assert len(lines) == len(list(parts(old))), "one of each"
    for line in lines:
        assert holds(wire.plain(kind, wire.loads(kind, line)), json.loads(line))
        assert wire.dumps(old, wire.loads(old, line)) == line, "the record of the old shapes is what wrote them"


def _made(line: str) -> Any:
    kind = FromAgent if line in frames("from") else ToAgent
    return wire.loads(kind, line)


def new_frames() -> tuple[list[Any], list[Any]]:
    """Every message that the first release knows, with each later field set."""
    gpus = (Device(0, "cpu", "CPU slot"), Device(1, "H100", "NVIDIA H100 80GB HBM3", 85_899_345_920, "GPU-1"))
    shape = NodeShape(NodeId("node-a"), "127.0.0.1", gpus, 2.0, 8 * 10**9, (20001, 20064), ("lease", "lock"))
    report = AttemptReport(
        DEMO, 3, "ended", (RankProcess(0, 11),), (RankExit(0, -15, 5, True),), 7, "lost", True, 6, devices=(0, 1), refused="no",
        faults=2, without=(1,),
    )  # fmt: skip
    launch = Launch(
        DEMO, ("", "x.py"), "", {"A": "b"}, "", "/jobs", 0, 2, 0, 1, (0, 1), 0.0, "127.0.0.1", 20002, {"lr": 0.5, "b": True},
        7, 2, 0, lock="uv.lock", image="img", secrets=("TOKEN",), on_partition="stop",
        recovery=GangRecovery(1, 5_000, (1, 1), 20003, "t"),
    )  # fmt: skip
    known = [_made(line) for line in (*frames("from"), *frames("to"))]
    kept = [message for message in known if not isinstance(message, Hello | Report | Welcome | StartRanks)]
    from_agent = [Hello(shape, "boot", 1, "9.9.9", 3, (report,)), Report(report)]
    to_agent = [Welcome(3, 15_000, {"log/demo-1.1/0": 1}, ("artifacts",)), StartRanks(launch, 3)]
    far = tuple(parts(FromAgent))
    return [*from_agent, *(one for one in kept if isinstance(one, far))], [
        *to_agent,
        *(one for one in kept if not isinstance(one, far)),
    ]


def test_frames_of_this_release_are_read_by_the_first() -> None:
    for kind, old, said in zip((FromAgent, ToAgent), (protocol_1.FromAgent, protocol_1.ToAgent), new_frames(), strict=True):
        for message in said:
            text = wire.dumps(kind, message)
            assert holds(json.loads(text), wire.plain(old, wire.loads(old, text)))


def test_what_the_first_release_does_not_know_is_only_ever_said_to_who_asked_for_it() -> None:
    for kind, old in ((FromAgent, protocol_1.FromAgent), (ToAgent, protocol_1.ToAgent)):
        later = {part.__name__ for part in parts(kind)} - {part.__name__ for part in parts(old)}
        of_gangs = {GiveUpNode.__name__, GangStarted.__name__}
        of_ranks = {PlanFaults.__name__, RequestTraces.__name__}
        of_sessions = {Activity.__name__, IdleWord.__name__, OpenChannel.__name__}
        only_to_those = {ArtifactSaved.__name__, ArtifactAck.__name__} | of_ranks | of_gangs | of_sessions
        assert later <= only_to_those, "these: see Welcome.features; CHAOS, TRACES, CHANNELS and RECOVERY_NODES of a node; `awaits`"


@pytest.mark.parametrize(
    "old",
    [kind for kind in vars(protocol_1).values() if dataclasses.is_dataclass(kind) and kind.__module__ == protocol_1.__name__],
)
def test_every_field_that_came_later_has_a_default_and_no_older_one_moved(old: Any) -> None:
    homes: list[Any] = [messages, devices, attempts]
    new = next(getattr(home, old.__name__) for home in homes if hasattr(home, old.__name__))
    before = [field.name for field in dataclasses.fields(old)]
    fields = {field.name: field for field in dataclasses.fields(new)}
    assert [name for name in fields if name in before] == before
    missing = dataclasses.MISSING
    for name in fields.keys() - set(before):
        assert fields[name].default is not missing or fields[name].default_factory is not missing, name


def test_a_new_agent_serves_an_old_control_plane(cell: Cell) -> None:
    cell.far.old = True
    cell.far.start(cell.launch("print('said')"))
    report = cell.far.phase("demo-1.1", "ended")
    assert [exited.code for exited in report.exits] == [0, 0]
    assert cell.far.text("log", "demo-1.1", 1) == "said\n"
    cell.far.say(Forget(report.attempt, 1))
    until(lambda: not cell.folder().exists())


def test_a_promise_of_this_release_is_read_by_the_first(cell: Cell) -> None:
    cell.far.start(cell.launch("", on_partition="stop"))
    cell.far.phase("demo-1.1", "ended")
    promise = wire.loads(protocol_1.Accepted, (cell.folder() / "launch.json").read_bytes())
    assert (promise.launch.attempt, promise.launch.devices) == ("demo-1.1", (0, 1))


def old_files(cell: Cell, *names: str) -> Path:
    """The attempt as the old agent left it, with those files, on a node whose agent is gone."""
    until(cell.far.hellos)
    cell.agent.end(signal.SIGKILL)
    folder, sockets = cell.folder(), socket_folder(cell.home)
    (folder / "exits").mkdir(parents=True)
    (cell.home / "jobs" / "demo-1" / "work").mkdir(parents=True)
    places: Mapping[str, object] = {
        "@HOME@": cell.home,
        "@AGENT@": agent_socket(sockets),
        "@SOCKET@": shim_socket(sockets, DEMO),
        "@PYTHON@": sys.executable,
        "@PORT@": free_port(),  # whoever listens at 20002 of this machine, such as another agent's gang, is not of this test
    }
    for name in names:
        text = (RELEASE / name).read_text()
        for place, value in places.items():
            text = text.replace(place, str(value))
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def old_shims() -> Iterator[list[subprocess.Popen[bytes]]]:
    made: list[subprocess.Popen[bytes]] = []
    yield made
    for process in made:
        process.kill()
        process.wait(DEADLINE_S)


def test_ranks_under_an_old_shim_are_adopted_stopped_and_forgotten(cell: Cell, old_shims: list[subprocess.Popen[bytes]]) -> None:
    folder = old_files(cell, "launch.json", "shim.json")
    program = shutil.copy(RELEASE / "shim.py.txt", cell.home / "shim.py")
    process = subprocess.Popen([sys.executable, "-I", "-S", program, str(folder)], start_new_session=True)
    old_shims.append(process)
    until((folder / "ranks.json").exists)
    pids = [entry["pid"] for entry in json.loads((folder / "ranks.json").read_bytes())]
    cell.agent.start()
    until(lambda: len(cell.far.hellos()) == 2)
    [adopted] = cell.far.hellos()[-1].attempts
    assert (adopted.phase, [rank.pid for rank in adopted.ranks], adopted.devices) == ("running", pids, (0, 1))
    until(lambda: all(cell.far.text("log", "demo-1.1", rank) == "up\n" for rank in range(2)))
    assert all(alive(pid) for pid in pids)
    cell.far.say(StopRanks(DEMO, 1, 300))
    report = cell.far.phase("demo-1.1", "ended")
    assert ([exited.code for exited in report.exits], report.lost) == ([-15, -15], "")
    cell.far.say(Forget(DEMO, 1))
    process.wait(DEADLINE_S)
    until(lambda: not folder.exists())


def test_an_end_that_an_old_shim_wrote_is_reported(cell: Cell) -> None:
    exits = ("exits/rank-0.json", "exits/rank-1.json")
    old_files(cell, "launch.json", "shim.json", "shim-pid.json", "ranks.json", "stop.json", "ended.json", *exits)
    cell.agent.start()
    report = cell.far.phase("demo-1.1", "ended")
    assert ([exited.code for exited in report.exits], report.lost, report.interrupted) == ([-15, -15], "", False)
    assert report.ended_ms == json.loads((RELEASE / "ended.json").read_bytes())["at_ms"]


def test_a_promise_of_an_old_agent_is_kept(cell: Cell) -> None:
    old_files(cell, "launch.json")
    cell.agent.start()
    until(lambda: cell.far.text("log", "demo-1.1", 1) == "up\n")
    cell.far.say(StopRanks(DEMO, 1, 300))
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [-15, -15]


def test_an_old_promise_that_was_to_be_stopped_is_not_kept(cell: Cell) -> None:
    old_files(cell, "launch.json", "stop.json")
    cell.agent.start()
    assert [exited.code for exited in cell.far.phase("demo-1.1", "ended").exits] == [-15, -15]
    assert "stopped before its ranks were started" in cell.far.text("log", "demo-1.1", 0)


def test_an_old_shim_that_a_reboot_ended_is_noticed(cell: Cell) -> None:
    old_files(cell, "launch.json", "shim.json", "shim-pid.json", "ranks.json")
    cell.agent.start()
    assert cell.far.phase("demo-1.1", "ended").lost == WITH_BOOT


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_another_version_of_the_agent_goes_on_with_ranks_that_never_noticed(cell: Cell, number: signal.Signals) -> None:
    done = cell.home / "done"
    cell.far.start(cell.launch(COUNT, env={"DONE": str(done)}))
    pids = [process.pid for process in cell.far.phase("demo-1.1", "running").ranks]
    records = cell.folder() / "rank-0.records"
    until(records.exists)
    for version in ("9.9.9", "0.0.1"):
        before = len(cell.far.hellos())
        cell.agent.end(number)
        size = records.stat().st_size
        until(lambda size=size: records.stat().st_size > size + 20)  # type: ignore[misc]
        cell.agent.version = version
        cell.agent.start()
        until(lambda before=before: len(cell.far.hellos()) > before)  # type: ignore[misc]
        hello = cell.far.hellos()[-1]
        assert hello.version == version
        assert [(one.phase, [rank.pid for rank in one.ranks]) for one in hello.attempts] == [("running", pids)]
    done.touch()
    report = cell.far.phase("demo-1.1", "ended")
    assert [(exited.code, exited.at_ms > 0) for exited in report.exits] == [(0, True)] * 2
    said = cell.far.text("records", "demo-1.1", 0).split()
    assert said == [str(number + 1) for number in range(len(said))]
    assert cell.far.text("records", "demo-1.1", 0) == records.read_text()
