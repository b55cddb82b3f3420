"""Every commit point of the platform, killed at by SIGKILL in real processes: nothing lost, nothing done twice.

A commit point is where something becomes durable that others rely on: a transaction, a promise or a fact in a file, a blob.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from live_platform import Platform, alive, until

from phalanx.core.errors import WorldError
from phalanx.core.views import JobView
from phalanx.storage import workdir as packing
from phalanx.storage.atomic import write_atomic

HOOK: Final = Path(__file__).parent / "kill_points"

STARTING: Final = ("server lead", "server tokens", "server file:server.json")
LIVING: Final = (
    "server blob",
    "server commit:job_submitted",
    "server commit:attempt_placed",
    "server commit:attempt_running",
    "server commit:rank_said",
    "server commit:attempt_ended",
    "server journal:log",
    "server journal:records",
    "server outbox_done",
    "agent file:epoch.json",
    "agent file:launch.json",
    "agent file:shim.json",
    "agent accept",
    "agent discard",
)
STOPPING: Final = ("server commit:stop_requested", "agent file:stop.json")
ELSEWHERE: Final = (
    "server commit:node_up",  # at the first connection of a home's node; the next Hello brings it again: tests/operate/control
    "server commit:job_waits",  # a remark, not a fact
    "server commit:node_away",
    "server file:gang.key",  # made at a home's first start; without it there is another, before any gang has a token of it
    "server file:token",
    "server file:node-token",
    "server file:boot",
    "agent file:name",
    "agent file:ports.json",
    "agent file:agent.json",
)
MOMENTS: Final = ("before", "after") if os.environ.get("PHALANX_SOAK") else ("after",)
"""Right after it is durable and before anybody acts on it is the harder one; `make soak` has both."""

SCRIPT: Final = """
import os, pathlib, time
from phalanx.job.sdk import attach
session = attach()
home = pathlib.Path(session.job_dir)
with open(home / f"started-{session.rank}", "a") as started:
    started.write("x")
print("hello from", session.rank, flush=True)
session.checkpoint(step=1, path=str(home), digest="d" * 64, size_bytes=1)
while pathlib.Path("hold").exists():
    time.sleep(0.02)
"""


class Victim(Platform):
    """A platform whose daemons can be told where to die."""

    kill_at: str = ""
    points: Path | None = None
    orders: Path | None = None
    armed: int | None = None

    @property
    def environ(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(HOOK), os.environ.get("PYTHONPATH", ""))))
        points = str(self.points) if self.points else ""
        told = {"KILL_AT": self.kill_at, "KILL_NEXT": str(self.orders or ""), "KILL_POINTS": points}
        return {**super().environ, "PYTHONPATH": path, **told}

    def pid(self, daemon: str) -> int | None:
        try:
            pid = int(json.loads((self.home / "run" / f"{daemon}.json").read_text())["pid"])
        except OSError:
            return None
        return pid if alive(pid) else None

    def up_armed(self, kill_at: str) -> None:
        """Starts the daemon anew so that it dies at `kill_at`, perhaps before it came up."""
        daemon = kill_at.partition(" ")[0]
        self._end(daemon)
        self.kill_at = kill_at
        self.run("up", "--port", "0", "--cpu-slots", "2", check=False)
        self.kill_at, self.armed = "", self.pid(daemon)

    def arm(self, kill_at: str) -> None:
        """The daemon that runs dies when it next comes to `kill_at`."""
        self.armed = self.pid(kill_at.partition(" ")[0])
        assert self.armed is not None and self.orders is not None
        write_atomic(self.orders, kill_at.encode())
        if kill_at.endswith("epoch.json"):
            self._end("server")  # the next one has a new epoch, and an agent writes only what is new
            self.run("up", "--port", "0", "--cpu-slots", "2", check=False)

    def _end(self, daemon: str) -> None:
        if (pid := self.pid(daemon)) is not None:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not alive(pid))

    def up_again(self) -> None:
        """Once the armed one is dead."""
        until(lambda: self.armed is None or not alive(self.armed))
        assert self.orders is not None
        self.orders.unlink(missing_ok=True)
        self.up()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    victim = Victim(tmp_path_factory.mktemp("home"))
    seen = tmp_path_factory.mktemp("seen")
    victim.points, victim.orders = seen / "points", seen / "orders"
    victim.up()
    yield victim
    victim.run("down", "--force")


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    (tmp_path / "rank.py").write_text(f"{SCRIPT}# {tmp_path}\n")  # a blob that is known already is not sent again
    return tmp_path


def spec(name: str, workdir: Path) -> dict[str, object]:
    return {"name": name, "entrypoint": ["python", "rank.py"], "workdir": str(workdir), "resources": {"gpus": 2}}


def submitted(victim: Victim, name: str, workdir: Path) -> str:
    """The job, whether or not the server survives its submit: the same key is the same job."""

    def once() -> str:
        with victim.client() as client:
            return client.submit(spec(name, workdir), packing.pack(workdir), key=f"{name}-{workdir}").id

    try:
        return once()
    except WorldError:
        victim.up_again()
        return once()


def check_whole(victim: Victim, job: str, view: JobView) -> None:
    """One job, one attempt, every rank started once, its words and its fact there once, every event in its place."""
    with victim.client() as client:
        assert [one.id for one in client.jobs() if one.name == view.name] == [job]
        kinds = [event.kind for event in client.events(job)]
        assert client.ledger().balanced
        logs = [client.logs(job, rank).text for rank in (0, 1)]
    assert len(view.attempts) == 1
    assert kinds.count("rank_said") == 2
    assert all(kinds.count(kind) <= 1 for kind in set(kinds) - {"rank_said", "job_waits"}), kinds
    for rank in (0, 1):
        assert (victim.home / "jobs" / job / f"started-{rank}").read_text() == "x"
        assert logs[rank].count(f"hello from {rank}") == 1


def name_of(point: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in point.replace("_", "-"))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("point", STARTING)
def test_killed_while_it_starts(victim: Victim, workdir: Path, point: str, moment: str) -> None:
    daemon, _, at = point.partition(" ")
    victim.up_armed(f"{daemon} {moment} {at}")
    victim.up_again()
    job = submitted(victim, f"starting-{name_of(at)}-{moment}", workdir)
    check_whole(victim, job, victim.finished(job))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("point", LIVING)
def test_killed_while_a_job_lives(victim: Victim, workdir: Path, point: str, moment: str) -> None:
    daemon, _, at = point.partition(" ")
    victim.arm(f"{daemon} {moment} {at}")
    job = submitted(victim, f"{name_of(at)}-{moment}", workdir)
    victim.up_again()
    check_whole(victim, job, victim.finished(job))


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("point", STOPPING)
def test_killed_while_a_job_is_cancelled(victim: Victim, workdir: Path, point: str, moment: str) -> None:
    daemon, _, at = point.partition(" ")
    (workdir / "hold").write_text("")
    victim.arm(f"{daemon} {moment} {at}")
    job = submitted(victim, f"{name_of(at)}-{moment}", workdir)
    until((victim.home / "jobs" / job / "started-1").exists)
    victim.run("cancel", job, check=False)
    victim.up_again()
    victim.run("cancel", job, check=False)  # where the first was lost with its server the user asks again
    with victim.client() as client:
        view = client.wait(job, timeout_s=240)
    assert view.outcome == "cancelled"
    pids = [rank.pid for attempt in view.attempts for rank in attempt.ranks if rank.pid]
    assert len(pids) == 2
    assert not any(alive(pid) for pid in pids)


def test_no_commit_point_is_left_out(victim: Victim) -> None:
    """After all of the above: whatever became durable there is named here."""
    assert victim.points is not None
    seen = set(victim.points.read_text().splitlines())
    assert seen >= set(STARTING) | set(LIVING) | set(STOPPING)
    assert seen <= set(STARTING) | set(LIVING) | set(STOPPING) | set(ELSEWHERE)
