"""The only place that wires concrete parts: the command `phalanx`, and the entry points of its daemons.

Imports nothing heavy itself: every room is imported when it is used, so that `phalanx --help` stays cheap.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.operate.engines.local import Machine
    from phalanx.show.cli.tools import ProgressSink

DAEMONS = ("server", "agent", "scheduler", "tracking")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of one command line: a daemon's (`python -m phalanx.app server --home H`), else the CLI's."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in DAEMONS:
        return _daemon(words)
    from phalanx.show.cli.main import run
    from phalanx.show.cli.tools import Tools

    tools = Tools(
        up=up, down=down, prepare_data=prepare_data, show_data=show_data, sample_model=sample_model, pack_workdir=pack_workdir
    )
    return run(tools, words)


# The command line's tools


def up(home: Path, port: int | None, cpu_slots: int | None) -> bool:
    from phalanx.operate.engines import local

    return local.up(_machine(), home, port, cpu_slots)


def down(home: Path, force: bool) -> bool:
    from phalanx.operate.engines import local

    return local.down(_machine(), home, force)


def prepare_data(paths: Sequence[Path], out: Path, vocab_size: int, force: bool, progress: "ProgressSink") -> Mapping[str, Any]:
    from phalanx.job.data.prepare import PrepareProgress, prepare

    def report(at: PrepareProgress) -> None:
        progress(at.phase, at.done_bytes, at.total_bytes)

    prepare([str(path) for path in paths], out, vocab_size=vocab_size, progress=report, force=force)
    return show_data(out)


def show_data(path: Path) -> Mapping[str, Any]:
    from phalanx.core import wire
    from phalanx.job.data.show import DataSummary, summary

    shown: Mapping[str, Any] = wire.plain(DataSummary, summary(path))
    return shown


def sample_model(path: Path, digest: str, prompt: str, tokens: int, seed: int, temperature: float) -> int:
    """In a process of its own: torch stays out of this one."""
    import subprocess

    options = {"prompt": prompt, "tokens": tokens, "seed": seed, "temperature": temperature, "digest": digest}
    words = [f"--{name}={value}" for name, value in options.items()]
    return subprocess.run([*_python("phalanx.job.serve.sample"), *words, "--", str(path)], check=False).returncode


def pack_workdir(folder: Path) -> bytes:
    from phalanx.storage.workdir import pack

    return pack(folder)


# The daemons


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
    given = parser.parse_args(words)
    if given.daemon != "agent":  # whose ranks inherit the umask of `phalanx up`; its own files lie in folders of mode 0700
        os.umask(0o077)
    start = {"server": _server, "agent": _agent, "scheduler": _scheduler, "tracking": _tracking}[given.daemon]
    try:
        return start(given.home.expanduser().resolve(), given)
    except PhalanxError as error:
        sys.stderr.write(f"phalanx {given.daemon}: {error}\n")
        return int(error.exit_code)


def _server(home: Path, given: Any) -> int:
    from phalanx.operate.control.server import run_server

    def command(child: str) -> list[str]:
        return [*_python("phalanx.app"), child, "--home", str(home)]

    return run_server(home, command, given.host, given.port)


def _agent(home: Path, given: Any) -> int:
    from phalanx.operate.agent.agent import run_agent
    from phalanx.operate.agent.connection import written_url
    from phalanx.operate.control.auth import token_of
    from phalanx.operate.home import node_name, open_home

    open_home(home)
    run_agent(home, written_url(home), token_of(home, "node"), node_name(home), given.cpu_slots)
    return 0


def _scheduler(home: Path, given: Any) -> int:
    from phalanx.operate.control.scheduler_process import serve

    serve(sys.stdin.buffer, 1)
    return 0


def _tracking(home: Path, given: Any) -> int:
    from phalanx.record.tracking.tracking_process import main as track

    track(home)
    return 0


if __name__ == "__main__":
    sys.exit(main())
