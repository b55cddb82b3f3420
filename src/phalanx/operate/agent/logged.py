"""Programs that prepare an attempt, their words going straight into a rank's log: people see them while they come."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from phalanx.operate.agent.sweeping import sweep
from phalanx.operate.agent.together import to_its_end

SAID_BYTES_MAX: Final = 64 * 1024
REASON_MAX: Final = 400
_FRAME: Final = " \t\r\u00d7\u2570\u2500\u25b6\u2502\u251c"
"""What uv draws before the lines of an error."""
_WORLD: Final = re.compile(
    r"error sending request|Request failed after \d+ retries|HTTP status server error|\btimed out\b|connection (?:closed|reset)"
    r"|dns error|No space left on device|Disk quota exceeded|Cannot allocate memory|Resource temporarily unavailable"
    r"|Too many open files|Input/output error|Read-only file system|i/o timeout|TLS handshake|connection refused|no such host"
    r"|unexpected HTTP status: 5|toomanyrequests",
    re.IGNORECASE,
)
"""What a network, a disk or a machine that fails looks like in the words of uv and of container tools (errno(3), reqwest, Go)."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a program ended, and the last of what it said."""

    code: int
    said: str

    @property
    def mends(self) -> bool:
        """Whether the same call may go better another time. A program that was killed met the machine's end of memory, or ours."""
        return self.code < 0 or _WORLD.search(self.said) is not None

    @property
    def reason(self) -> str:
        """Its error in one line: from its last 'error:' on, else its last line."""
        lines = [stripped for line in self.said.splitlines() if (stripped := line.strip(_FRAME))]
        begins = [index for index, line in enumerate(lines) if line.lower().startswith("error:")]
        told = lines[begins[-1] :] if begins else lines[-1:]
        text = "; ".join(re.sub(r"^(?:error|cause):\s*", "", line, flags=re.IGNORECASE) for line in told)
        text = text or (f"it was killed by signal {-self.code}" if self.code < 0 else f"it ended with code {self.code}")
        return text if len(text) <= REASON_MAX else f"{text[:REASON_MAX]}..."


def say(log: Path, text: str) -> None:
    """A line of the platform's in the rank's log. Raises OSError."""
    with _appended(log) as out:
        os.write(out, f"phalanx: {text}\n".encode(errors="backslashreplace"))


async def run_logged(command: Sequence[str], cwd: Path, env: Mapping[str, str], log: Path, mark: str) -> Outcome:
    """Runs it to its end, its output in `log`. When this is cancelled, nothing that carries `mark` in its environment lives on.
    Raises OSError when it cannot be started."""
    process: asyncio.subprocess.Process | None = None
    quiet = asyncio.subprocess.DEVNULL
    try:
        with _appended(log) as out:
            start = os.lseek(out, 0, os.SEEK_END)
            process = await asyncio.create_subprocess_exec(
                *command, cwd=cwd, env=dict(env), stdin=quiet, stdout=out, stderr=out, start_new_session=True
            )
        code = await process.wait()
    except asyncio.CancelledError:
        await to_its_end(_end, process.pid if process else None, mark)
        raise
    return Outcome(code, await asyncio.to_thread(_tail, log, start))


async def quiet_code(command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """How a short question ends; its words go nowhere. When this is cancelled, the program is ended. Raises OSError when it cannot
    be started."""
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, env=None if env is None else dict(env), stdin=quiet, stdout=quiet, stderr=quiet
    )
    try:
        return await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        raise


def _end(pid: int | None, mark: str) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    sweep([mark])


def _tail(log: Path, start: int) -> str:
    with log.open("rb") as said:
        end = said.seek(0, os.SEEK_END)
        said.seek(max(start, end - SAID_BYTES_MAX))
        return said.read().decode(errors="replace")


@contextlib.contextmanager
def _appended(log: Path) -> Iterator[int]:
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield out
    finally:
        os.close(out)
