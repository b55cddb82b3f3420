"""The only place that wires concrete parts: the command `phalanx`, and the entry points of its daemons.

Imports nothing heavy itself: every room is imported when it is used, so that `phalanx --help` stays cheap.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from phalanx.client import Client
    from phalanx.core.checkpoints import StoredCheckpoint
    from phalanx.core.clusters import Answer, Clusters, DispatchView
    from phalanx.core.data_asked import AuditAsked, ForeseeAsked, MadeAsked, MixAsked, PrepareAsked, SampleAsked
    from phalanx.core.data_audit import DataAudit
    from phalanx.core.data_views import MixView, SamplesView
    from phalanx.core.errors import PhalanxError
    from phalanx.core.experts import ExpertsAsked, ExpertsView
    from phalanx.core.fabric_test import FabricAsked, FabricReport
    from phalanx.core.pipeline import PipelineAsked, PipelineView
    from phalanx.core.sim_report import SimAsked, SimReport, WhatIfView
    from phalanx.core.spec import JobSpec
    from phalanx.core.views import BackupView, DownView, RestoreView
    from phalanx.operate.engines.local import Machine
    from phalanx.show.cli.tools import ProgressSink

DAEMONS = ("server", "agent", "scheduler", "tracking")

FOR_TERMINALS = ("rich", "pygments")
FOR_MODELS = ("numpy", "pandas", "pyarrow", "scipy", "sklearn")
"""What libraries import where it happens to be installed and our daemons never use: httpx and structlog take the first for colours,
5 to 10 MB in a process; MLflow takes the second for data sets and models, 50 to 90 MB in the tracking process."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of one command line: a daemon's (`python -m phalanx.app server --home H`), else the CLI's."""
    words = list(sys.argv[1:] if argv is None else argv)
    return _daemon(words) if _name_a_daemon(words) else _command(words)


def _command(words: Sequence[str]) -> int:
    from phalanx.core.errors import Exit

    try:
        from phalanx.show.cli.main import run
        from phalanx.show.cli.tools import Tools

        tools = Tools(
            up=up, down=down, prepare_data=prepare_data, show_data=show_data, sample_model=sample_model, pack_workdir=pack_workdir,
            join=join, isolate=isolate, serve_node=serve_node, simulate=simulate, what_if=what_if, choose=choose,
            list_checkpoints=list_checkpoints, verify_checkpoints=verify_checkpoints, verify_data=verify_data,
            audit_data=audit_data, sample_data=sample_data, mix_data=mix_data, make_data=make_data, push_data=push_data,
            foresee_data=foresee_data, place_experts=place_experts, backup=backup, restore=restore,
            export_model=export_model, foresee_model=foresee_model, plan_pipeline=plan_pipeline, test_fabric=test_fabric,
        )  # fmt: skip
        return run(tools, words)
    except KeyboardInterrupt:  # before the command began, which would have had words for it
        return int(Exit.DETACHED)


# The command line's tools


def up(home: Path, port: int | None, cpu_slots: int | None, store: str = "", database: str = "", standby: bool = False) -> bool:
    from phalanx.operate import daemons
    from phalanx.operate.engines import local

    home = home.expanduser().resolve()
    _refuse_joined(home)
    if store or os.environ.get("PHALANX_STORE"):
        from phalanx.operate.control import blob_home

        store = blob_home.choice(home, store, os.environ)
        blob_home.check_change(home, store, daemons.alive(home, "server") is not None)
    if database or os.environ.get("PHALANX_DATABASE"):
        from phalanx.operate.control import database_home

        database_home.choose(home, database, os.environ, daemons.alive(home, "server") is not None)
    if standby:
        return local.up_standby(_machine(), home, port, store)
    return local.up(_machine(), home, port, cpu_slots, store)


def _refuse_joined(home: Path) -> None:
    """A home whose agent belongs to another control plane is none for a control plane of its own."""
    from phalanx.core.errors import SetupError
    from phalanx.operate.agent import membership

    known = membership.read(home)
    if known is not None:
        fix = (
            f"is the home of an agent that joined {known.url}; start that with `phalanx agent join`, or choose another PHALANX_HOME"
        )
        raise SetupError("home", str(home), fix)


def down(home: Path, force: bool) -> "DownView":
    from phalanx.operate.engines import local

    return local.down(_machine(), home, force)


def backup(home: Path, path: Path) -> "BackupView":
    import time
    from importlib.metadata import version

    from phalanx.operate.control import backups

    return backups.backup(home.expanduser().resolve(), path, time.time_ns() // 1_000_000, version("phalanx"))


def restore(home: Path, path: Path, database: str, keep_tokens: bool) -> "RestoreView":
    from phalanx.operate.control import backups

    home = home.expanduser().resolve()
    _refuse_joined(home)
    return backups.restore(home, path, database, os.environ, keep_tokens)


def prepare_data(asked: "PrepareAsked", progress: "ProgressSink") -> Mapping[str, Any]:
    from phalanx.job.data.prepared import prepared

    return prepared(asked, progress)


def make_data(asked: "MadeAsked", progress: "ProgressSink") -> Mapping[str, Any]:
    from phalanx.job.data.made import make

    return make(asked, progress)


def show_data(path: Path | str, progress: "ProgressSink") -> Mapping[str, Any]:
    from phalanx.job.data.shown import shown_unread

    return shown_unread(path, lambda done, total: progress("checking", done, total))


def push_data(path: Path, place: str, progress: "ProgressSink") -> Mapping[str, Any]:
    from phalanx.job.data.push import pushed

    return pushed(path, place, lambda done, total: progress("pushing", done, total))


def verify_data(path: Path | str, progress: "ProgressSink") -> Mapping[str, Any]:
    from phalanx.job.data.shown import verified

    return verified(path, lambda done, total: progress("checking", done, total))


def sample_data(asked: "SampleAsked") -> "SamplesView":
    from phalanx.job.data.sampled import samples

    return samples(asked)


def audit_data(asked: "AuditAsked", progress: "ProgressSink") -> "DataAudit":
    from phalanx.job.train.audited import audited

    return audited(asked, lambda done, total: progress("auditing", done, total))


def foresee_data(asked: "ForeseeAsked") -> "Sequence[str]":
    from phalanx.job.data.foreseen import foreseen

    return foreseen(asked)


def foresee_model(spec: "JobSpec") -> "Sequence[str]":
    from phalanx.core.spec_parse import recipe_config
    from phalanx.job.models.given import foreseen_init
    from phalanx.operate.control.layouts import refuse_unfitting

    given, warnings = foreseen_init(recipe_config(spec))
    if given is not None:
        refuse_unfitting(spec, given)
    return warnings


def mix_data(asked: "MixAsked") -> "MixView":
    from phalanx.job.data.outlook import outlook

    return outlook(asked)


def sample_model(path: Path, digest: str, prompt: str, tokens: int, seed: int, temperature: float) -> int:
    """In a process of its own: torch stays out of this one."""
    import subprocess

    options = {"prompt": prompt, "tokens": tokens, "seed": seed, "temperature": temperature, "digest": digest}
    words = [f"--{name}={value}" for name, value in options.items()]
    return subprocess.run([*_python("phalanx.job.serve.sample"), *words, "--", str(path)], check=False).returncode


def export_model(path: Path, digest: str, to: Path, form: str, dtype: str) -> int:
    """In a process of its own, as `sample_model`."""
    import subprocess

    words = [f"--to={to}", f"--format={form}", f"--dtype={dtype}", f"--digest={digest}"]
    return subprocess.run([*_python("phalanx.job.serve.export"), *words, "--", str(path)], check=False).returncode


def list_checkpoints(place: str) -> "Sequence[StoredCheckpoint]":
    from phalanx.job.checkpoint.listing import listed

    return listed(place)


def verify_checkpoints(place: str, progress: "ProgressSink") -> "Sequence[StoredCheckpoint]":
    from phalanx.job.checkpoint.listing import verified

    return verified(place, progress)


def pack_workdir(folder: Path) -> bytes:
    from phalanx.storage.workdir import pack

    return pack(folder)


def join(home: Path, url: str, token_file: Path | None, name: str) -> str:
    from phalanx.core.errors import SetupError
    from phalanx.operate import daemons
    from phalanx.operate.agent import membership
    from phalanx.operate.home import open_home

    membership.refuse_own(home)
    open_home(home)
    with daemons.only_one(home, "up", "another `phalanx agent join`, `up` or `down` is at work on it; wait for it to end"):
        if running := daemons.alive(home, "agent"):
            raise SetupError("home", str(home), f"another agent of this home is running (pid {running.pid}); stop it first")
        return membership.enter(home, url, token_file, name, _Door(url)).node


def isolate(home: Path, mode: str) -> None:
    from phalanx.core.errors import SetupError
    from phalanx.core.isolation import MODES
    from phalanx.operate import daemons
    from phalanx.operate.home import isolation_of, open_home, set_isolation

    known = next((one for one in MODES if one == mode), None)
    if known is None:
        raise SetupError("isolation", mode, f"is none of {', '.join(MODES)}")
    home = home.expanduser().resolve()
    open_home(home)
    has = isolation_of(home)
    if has != known and daemons.alive(home, "agent"):
        raise SetupError("isolation", mode, f"the agent of this home runs with {has}; stop it first, or leave --isolation out")
    set_isolation(home, known)


def serve_node(home: Path, cpu_slots: int | None) -> int:
    """In this process, which becomes the agent: light, and `down` knows it by its command line."""
    sys.stdout.flush()
    sys.stderr.flush()
    options = ["--cpu-slots", str(cpu_slots)] if cpu_slots else []
    os.execv(sys.executable, [*_python("phalanx.app"), "agent", "--home", str(home), "--joined", *options])  # noqa: S606 (no shell)


def simulate(asked: "SimAsked", progress: "Callable[[int, int], None]") -> "SimReport":
    from phalanx.operate.sim.replay import simulated

    return simulated.simulate(asked, progress)


def what_if(snapshot: str, policy: str) -> "WhatIfView":
    from phalanx.operate.sim.replay import whatif

    return whatif.what_if(snapshot, policy)


def choose(spec: "JobSpec", clusters: "Clusters", answers: "Sequence[Answer]", now_ms: int) -> "DispatchView":
    from phalanx.decide.scheduler.clusters import choose

    return choose(spec, clusters, answers, now_ms)


def place_experts(asked: "ExpertsAsked") -> "ExpertsView":
    from phalanx.fabric.experts.shown import shown

    return shown(asked)


def test_fabric(asked: "FabricAsked", num_ranks: int | None, out: Path, progress: "Callable[[int, int], None]") -> "FabricReport":
    from phalanx.job.train.fabric_test.here import ranks_here, tested_here
    from phalanx.operate.agent.devices import read_nvml

    uuids = [gpu.uuid for gpu in read_nvml() or ()]
    return tested_here(asked, ranks_here(num_ranks, uuids, os.cpu_count() or 1, os.environ), out, progress)


def plan_pipeline(asked: "PipelineAsked") -> "PipelineView":
    from phalanx.fabric.pipeline.planned import planned

    return planned(asked)


class _Door:
    """A control plane, asked by the client; of several addresses the first that answers."""

    def __init__(self, urls: str) -> None:
        self._urls = urls.split(",")

    def exchange(self, token: str, node: str, credential_sha256: str) -> None:
        self._ask(token, lambda client: client.join(node, credential_sha256))

    def check(self, credential: str) -> None:
        self._ask(credential, lambda client: client.membership())

    def _ask(self, token: str, question: "Callable[[Client], object]") -> None:
        from phalanx.client import Client
        from phalanx.core.errors import ServerUnreachable

        for number, url in enumerate(self._urls, 1):
            try:
                with Client(url, token) as client:
                    question(client)
                return
            except ServerUnreachable:
                if number == len(self._urls):
                    raise


# The daemons


def _name_a_daemon(words: Sequence[str]) -> bool:
    """`agent` alone is a command of people's."""
    return bool(words) and words[0] in DAEMONS and (words[0] != "agent" or list(words[1:2]) == ["--home"])


def _machine() -> "Machine":
    from phalanx.operate.engines.local import Machine

    return Machine(lambda daemon, home, options: [*_python("phalanx.app"), daemon, "--home", str(home), *options])


def _python(module: str) -> list[str]:
    """`-P`: a file in the present folder must not stand in for a module of ours."""
    return [sys.executable, "-P", "-m", module]


def _daemon(words: Sequence[str]) -> int:
    import argparse

    from phalanx.core.errors import PhalanxError

    parser = argparse.ArgumentParser(prog="phalanx.app")
    parser.add_argument("daemon", choices=DAEMONS)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=os.environ.get("PHALANX_PORT") or "8720")
    parser.add_argument("--cpu-slots", type=int)
    parser.add_argument("--joined", action="store_true", help="of an agent: serve the control plane that this home joined")
    parser.add_argument("--store", default="")
    parser.add_argument("--database", default="")
    parser.add_argument("--standby", action="store_true", help="of a server: lead once nobody else does")
    given = parser.parse_args(words)
    if given.daemon != "agent":  # whose ranks inherit the umask of `phalanx up`; its own files lie in folders of mode 0700
        os.umask(0o077)
    start = {"server": _server, "agent": _agent, "scheduler": _scheduler, "tracking": _tracking}[given.daemon]
    try:
        return start(given.home.expanduser().resolve(), given)
    except PhalanxError as error:
        sys.stderr.write(f"{_refusal(error)}\n")
        return int(error.exit_code)


def _refusal(error: "PhalanxError") -> str:
    """A line of the daemon's log, JSON like the others: whoever started it repeats what can be repaired, and nothing else."""
    import json

    from phalanx.core.errors import UserError

    said = {"event": "refused", "level": "error", "error": str(error)}
    if isinstance(error, UserError):
        said |= {"field": error.field, "value": str(error.value), "fix": error.fix}
    return json.dumps(said)


def _server(home: Path, given: Any) -> int:
    from phalanx.core.imports import long_imports

    with long_imports():
        from phalanx.operate.control.server import run_server

    def command(child: str) -> list[str]:
        return [*_python("phalanx.app"), child, "--home", str(home)]

    return run_server(home, command, given.host, given.port, given.store, given.database, given.standby)


def _agent(home: Path, given: Any) -> int:
    from phalanx.operate.agent.agent import run_agent
    from phalanx.operate.agent.connection import written_url
    from phalanx.operate.control.auth import token_of
    from phalanx.operate.home import node_name, open_home

    open_home(home)
    if given.joined:
        return _joined_agent(home, given.cpu_slots)
    run_agent(home, written_url(home), token_of(home, "node"), node_name(home), given.cpu_slots)
    return 0


def _joined_agent(home: Path, cpu_slots: int | None) -> int:
    from phalanx.core.errors import SetupError
    from phalanx.core.ids import NodeId
    from phalanx.operate.agent import membership
    from phalanx.operate.agent.agent import run_agent
    from phalanx.operate.agent.connection import Listed

    known = membership.read(home)
    if known is None:
        raise SetupError("home", str(home), "has joined no control plane; run `phalanx agent join`")
    run_agent(home, Listed(known.urls), known.credential, NodeId(known.node), cpu_slots)
    return 0


def _scheduler(home: Path, given: Any) -> int:
    from phalanx.operate.control.scheduler_process import serve

    serve(sys.stdin.buffer, 1)
    return 0


def _tracking(home: Path, given: Any) -> int:
    from phalanx.record.tracking.tracking_process import main as track

    track(home)
    return 0


def _leave_out(daemon: str) -> None:
    """Of this process, before anything is imported that would take it along."""
    for name in FOR_TERMINALS + (FOR_MODELS if daemon == "tracking" else ()):
        sys.modules[name] = None  # type: ignore[assignment]  # Python's own way to say that it cannot be imported


if __name__ == "__main__":  # as which daemons are started; the command line needs a terminal's colours
    if _name_a_daemon(sys.argv[1:]):
        _leave_out(sys.argv[1])
    sys.exit(main())
