"""The application over a real control plane in this process: real store, journal, series and blobs, and agents that obey in
memory. A clock set by hand, and ticks when the test says so."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fastapi import FastAPI
from starlette.testclient import TestClient

from phalanx.core import features
from phalanx.core.errors import Bug
from phalanx.core.ids import AttemptId, JobId
from phalanx.core.messages import ArtifactSaved
from phalanx.core.records import Metric, StepRecord
from phalanx.decide.scheduler import schedule
from phalanx.operate.control import artifacts
from phalanx.operate.control.agent_socket import AgentDesk
from phalanx.operate.control.api.application import create_app
from phalanx.operate.control.api.doors import Doors
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.artifacts import Artifacts
from phalanx.operate.control.auth import FILES, open_tokens
from phalanx.operate.control.blob_home import open_blobs
from phalanx.operate.control.control_thread import ControlThread
from phalanx.operate.control.gc_run import Collector
from phalanx.operate.control.ingest import Ingest
from phalanx.operate.control.last_words import LastWords
from phalanx.operate.control.people.accounts import Accounts
from phalanx.operate.control.secrets import Secrets
from phalanx.operate.control.tail import Tail
from phalanx.record.telemetry.journal import Journal
from phalanx.record.telemetry.series import SeriesStore
from phalanx.storage.hashes import sha256_bytes
from tests.operate.control.control_bench import Bench, a_spec, new_bench

HOST: Final = "testserver"


@dataclass
class Served:
    """A bench whose controller is owned by a control thread, and the application over it."""

    bench: Bench
    control: ControlThread
    services: Services
    ingest: Ingest
    app: FastAPI
    admin: str
    node: str

    def tick(self, times: int = 1) -> None:
        """As `run_ticks` does, at once."""
        for _ in range(times):
            snapshot = self.bench.control.observe()
            self.control._snapshot = snapshot
            self.bench.control.carry_out(schedule(snapshot))

    def http(self, token: str | None = None) -> TestClient:
        """A client of it, the admin's without a token of another."""
        headers = {"Authorization": f"Bearer {self.admin if token is None else token}"}
        return TestClient(self.app, f"http://{HOST}", headers=headers)

    def submit(self, name: str = "tiny", gpus: str = "2") -> JobId:
        """A job that is decided of, and not more."""
        job = self.bench.submit(a_spec(name, gpus))
        self.tick(2)
        return job

    def run(self, name: str = "tiny", gpus: str = "2") -> AttemptId:
        """A job whose ranks run."""
        job = self.submit(name, gpus)
        newest = self.bench.world.jobs[job].attempt
        assert newest is not None
        for agent in self.bench.agents.values():
            if newest in agent.held:
                agent.run(newest)
        self.tick()
        return newest

    def end(self, attempt: AttemptId, code: int = 0) -> None:
        """Every rank of it exits."""
        for agent in self.bench.agents.values():
            if attempt in agent.held:
                agent.end(attempt, code)
        self.tick(2)

    def write_log(self, attempt: AttemptId, text: bytes, rank: int = 0) -> None:
        """More of a rank's log."""
        journal = self.services.journal
        journal.write("log", attempt, rank, journal.size("log", attempt, rank), text)

    def measure(self, attempt: AttemptId, steps: int, rank: int = 0, loss: float = 5.0) -> None:
        """Step records, and a metric with each."""
        for step in range(1, steps + 1):
            at_ms = self.bench.clock.now_ms() + step * 1000
            record = StepRecord(
                rank=rank,
                step=step,
                total_steps=steps,
                loss=loss / step,
                loss_hex=(loss / step).hex(),
                grad_norm=1.0,
                lr=0.1,
                tokens=100,
                tokens_per_s=100.0,
                mfu=0.1,
                started_ms=at_ms - 900,
                ended_ms=at_ms,
            )
            metric = Metric(rank=rank, step=step, name="val_loss", value=6.0 / step, at_ms=at_ms)
            self.services.series.append(attempt, (record, metric))

    def keep_file(self, attempt: AttemptId, name: str, content: bytes) -> None:
        """An artifact that a rank gave."""
        sha256 = sha256_bytes(content)
        self.services.blobs.put_checked(sha256, content)
        saved = ArtifactSaved(attempt, name, sha256, len(content), self.bench.clock.now_ms())
        artifacts.note(self.services.store, self.bench.control.epoch, saved)

    def job_of(self, attempt: AttemptId) -> JobId:
        return self.bench.world.attempts[attempt].job

    def close(self) -> None:
        self.control.close()
        self.services.series.close()


def _raise(error: BaseException) -> None:
    raise Bug("a promise was broken") from error


@contextlib.contextmanager
def served(home: Path, on_bug: Callable[[BaseException], None] = _raise) -> Iterator[Served]:
    """A fresh home with one node of eight devices, served."""
    bench = new_bench(home)
    for folder in ("run", "jobs"):
        (home / folder).mkdir()
    bench.add("node-a", 8, features=(features.SECRETS, features.ARTIFACTS))
    bench.tick()
    control = ControlThread(bench.control, on_bug)
    tokens = open_tokens(home, bench.store, bench.control.epoch, bench.clock.now_ms())
    journal, series = Journal(home / "journal"), SeriesStore(home / "series")
    secrets, blobs = Secrets(home, bench.store, bench.clock.now_ms), open_blobs(home)
    words = LastWords(lambda: control.world, journal, lambda spec: secrets.values(spec.secrets, spec.team).values())
    taken = Artifacts(control, bench.store, blobs)
    ingest = Ingest(control, journal, series)
    services = Services(
        home=home,
        url=f"http://{HOST}",
        control=control,
        store=bench.store,
        clock=bench.clock,
        tokens=tokens,
        accounts=Accounts(bench.store, bench.clock.now_ms),
        doors=Doors(),
        oidc=None,
        secrets=secrets,
        blobs=blobs,
        collector=Collector(home, control, bench.store, series, blobs, bench.clock),
        journal=journal,
        series=series,
        desk=AgentDesk(control, bench.links, ingest, bench.settings.lease_ms, bench.clock.now_ms, {}, taken, words),
        processes=dict,
        tail=Tail(control, bench.store),
        grown=ingest.grown,
    )
    admin, node = ((home / name).read_text().strip() for name in FILES.values())
    one = Served(bench, control, services, ingest, create_app(services, frozenset({HOST})), admin, node)
    try:
        yield one
    finally:
        one.close()
        bench.store.close()
