"""The ends of ways on this node: a job's terminal, a command beside its ranks, a port that it listens on, its notebook server."""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from phalanx.core import gang_wire
from phalanx.core.channels import ARGV_BYTES_MAX, DATA_BYTES_MAX, NotebookPlace
from phalanx.core.errors import Conflict, NotFound, SpecError
from phalanx.core.ids import AttemptId
from phalanx.core.messages import OpenChannel
from phalanx.operate.agent.attempt_run import AttemptRun
from phalanx.operate.agent.sockets import terminal_socket
from phalanx.operate.agent.terminal import beside, holder, notebook
from phalanx.operate.agent.terminal.ways import Ends, Streams

BESIDE_S_MAX: Final = 20.0
LOOK_S: Final = 0.02
_NOT_THEIRS: Final = ("PHALANX_RECORDS", gang_wire.ADDRESS, gang_wire.TOKEN, gang_wire.MEMBER, gang_wire.TIMEOUTS)
"""Of a rank: who comes beside it keeps none of its records, and has no place in its gang."""


class Reached(Ends):
    """Of the attempts that `run_of` knows. `shim_socket`: as in `attempt_run.Node`."""

    def __init__(self, run_of: Callable[[AttemptId], AttemptRun | None], shim_socket: Callable[[AttemptId], Path]) -> None:
        self._run_of, self._shim_socket = run_of, shim_socket

    def _run(self, command: OpenChannel) -> AttemptRun:
        run = self._run_of(command.attempt)
        if run is None or run.seen.ended or not run.seen.ranks:
            raise Conflict("job", command.attempt, "its ranks are not running; wait until `phalanx describe` says that they are")
        return run

    async def terminal(self, command: OpenChannel) -> Streams:
        if self._run(command).folder.accepted.launch.session != "shell":
            fix = "has no terminal of its own; `phalanx exec -t JOB -- bash` opens one in it"
            raise Conflict("job", command.attempt, fix)
        try:
            return await asyncio.open_unix_connection(str(terminal_socket(self._shim_socket(command.attempt))))
        except OSError as error:
            raise Conflict(
                "job", command.attempt, f"its terminal does not answer ({error}); its shell has probably ended"
            ) from error

    async def beside(self, command: OpenChannel) -> Streams:
        run, name = self._run(command), secrets.token_hex(3)
        path = run.folder.path / beside.FOLDER / f"{name}.json"
        entry = await asyncio.to_thread(self._entry, run, command, name)
        await asyncio.to_thread(_write, path, entry)
        try:
            run.begin_beside(name)
            return await self._begun(command, path, Path(entry["listen"]))
        finally:
            await asyncio.to_thread(_remove, path, path.with_suffix(".error"), Path(entry["listen"]))

    async def _begun(self, command: OpenChannel, path: Path, socket: Path) -> Streams:
        until = time.monotonic() + BESIDE_S_MAX
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                return await asyncio.open_unix_connection(str(socket))
            with contextlib.suppress(OSError):
                why = path.with_suffix(".error").read_text()
                raise Conflict("command", command.asked.argv[0], f"cannot be started beside the job: {why}")
            await asyncio.sleep(LOOK_S)
        fix = "was not started in time; a job that an older agent started cannot do it, start it again"
        raise Conflict("job", command.attempt, fix)

    def _entry(self, run: AttemptRun, command: OpenChannel, name: str) -> dict[str, Any]:
        """What the shim starts: as the rank, but for what is the rank's alone."""
        launch, asked = run.folder.accepted.launch, command.asked
        if launch.image:
            raise Conflict("job", command.attempt, "runs in a container, which `phalanx exec` does not enter; use `podman exec`")
        if not asked.argv or sum(map(len, asked.argv)) > ARGV_BYTES_MAX:
            raise SpecError("command", f"{len(asked.argv)} words", f"give one, of at most {ARGV_BYTES_MAX} bytes")
        ranks = json.loads((run.folder.path / "shim.json").read_bytes())["ranks"]
        of = ranks[0] if launch.session else next((one for one in ranks if one["rank"] == asked.rank), None)
        if of is None:
            raise NotFound(
                "rank", str(asked.rank), f"is not on this node, which has {', '.join(str(one['rank']) for one in ranks)}"
            )
        env = {key: value for key, value in of["env"].items() if key not in _NOT_THEIRS}
        return {
            "rank": of["rank"],
            "argv": holder.command("tied" if asked.terminal else "piped", asked.argv),
            "env": env,
            "log": str(run.folder.path / "shim.log"),
            "listen": str(terminal_socket(self._shim_socket(command.attempt), name)),
        }

    async def port(self, command: OpenChannel) -> Streams:
        run, port = self._run(command), command.asked.port
        where = await asyncio.to_thread(run.listens_at, port)
        if where is None:
            fix = "no process of the job listens there, on loopback or every address; start what should, or name its port"
            raise Conflict("port", port, fix)
        try:
            return await asyncio.open_connection(where, port, limit=DATA_BYTES_MAX)
        except OSError as error:
            raise Conflict("port", port, f"does not take a connection: {error}") from error

    async def notebook(self, command: OpenChannel) -> NotebookPlace:
        run = self._run(command)
        launch = run.folder.accepted.launch
        if launch.session != "notebook":
            raise Conflict("job", command.attempt, "is no notebook; submit one with `phalanx notebook`")
        found = await asyncio.to_thread(notebook.place, run.folder.path, launch.master_port)
        if found is None or await asyncio.to_thread(run.listens_at, found.port) is None:
            raise Conflict("job", command.attempt, "its notebook server does not listen yet; ask again, or look at `phalanx logs`")
        return found


def _write(path: Path, entry: dict[str, Any]) -> None:
    """Whole or not at all, for the shim alone."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    staged = path.with_suffix(".new")
    staged.touch(mode=0o600)
    staged.write_text(json.dumps(entry))
    staged.rename(path)


def _remove(*paths: Path) -> None:
    """The socket too: who is connected stays so, and nobody else may come."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
