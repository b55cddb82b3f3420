"""Channels into running jobs, as `core.channels` has them: a terminal, a command, a port, a notebook's place."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Final, Self
from urllib.parse import urlencode

import httpx
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from phalanx.client.checks import job_path
from phalanx.client.http import Line, problem
from phalanx.core.channels import (
    DATA_BYTES_MAX,
    END,
    INPUT,
    MESSAGE_BYTES_MAX,
    NOTEBOOK,
    OPEN_S_MAX,
    REFUSED,
    RESIZE,
    NotebookPlace,
    What,
)
from phalanx.core.errors import Conflict, ServerUnreachable

HURRY_S: Final = 10.0
"""Beyond what the control plane waits for the node's agent."""


class Channel:
    """One that is open. `receive` may be called in one thread while others send. Use it as a context manager, or close it."""

    def __init__(self, socket: ClientConnection, stack: ExitStack) -> None:
        """stack: closes it."""
        self._socket, self._stack = socket, stack

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing that runs in the job ends for it, but for a command that was started for this channel."""
        self._stack.close()

    def attach(self, rows: int, columns: int) -> None:
        """To a terminal of that size, or to a command."""
        self._tell({"attach": [rows, columns]})

    def resize(self, rows: int, columns: int) -> None:
        self._tell({RESIZE: [rows, columns]})

    def send(self, data: bytes) -> None:
        """Waits while the job's end does not read. Raises ServerUnreachable once the channel is over."""
        for start in range(0, len(data), DATA_BYTES_MAX):
            self._send(bytes((INPUT,)) + data[start : start + DATA_BYTES_MAX])

    def end_input(self) -> None:
        """Nothing more is sent; what comes back goes on."""
        self._tell({END: INPUT})

    def receive(self) -> Iterator[tuple[int, bytes] | dict[str, Any]]:
        """(stream, data), and the words of the platform, until the channel is over. Raises ServerUnreachable when it broke."""
        try:
            for message in self._socket:
                if isinstance(message, bytes):
                    yield message[0], message[1:]
                else:
                    yield json.loads(message)
        except ConnectionClosed as error:
            raise ServerUnreachable(
                f"the connection to the job is gone ({error.rcvd.reason if error.rcvd else 'it broke'})"
            ) from error

    def _tell(self, message: dict[str, Any]) -> None:
        self._send(json.dumps(message))

    def _send(self, message: str | bytes) -> None:
        try:
            self._socket.send(message)
        except (ConnectionClosed, OSError) as error:
            raise ServerUnreachable(f"the connection to the job is gone ({error})") from error


def open_channel(
    line: Line, job: str, what: What, *, rank: int = 0, argv: Sequence[str] = (), terminal: bool = False, port: int = 0
) -> Channel:
    """Raises the error that the platform answers, ServerUnreachable."""
    asked: list[tuple[str, str]] = [("what", what), ("rank", str(rank)), ("port", str(port))]
    asked += [("argv", word) for word in argv] + ([("terminal", "true")] if terminal else [])
    url = f"ws{line.url.removeprefix('http')}/api/v1{job_path(job)}/channel?{urlencode(asked)}"
    headers = {"Authorization": line.http.headers["Authorization"]}
    stack = ExitStack()
    try:
        opening = connect(
            url, additional_headers=headers, max_size=MESSAGE_BYTES_MAX, max_queue=4, compression=None, proxy=None,
            ping_interval=None,
            open_timeout=OPEN_S_MAX + HURRY_S,
        )  # fmt: skip
        return Channel(stack.enter_context(opening), stack)
    except InvalidStatus as error:
        answer = error.response
        raise problem(
            httpx.Response(answer.status_code, headers=list(answer.headers.raw_items()), content=bytes(answer.body or b"")),
            line.url,
        ) from error
    except (OSError, TimeoutError, WebSocketException) as error:
        raise ServerUnreachable(f"{line.url} does not answer ({error}); is it up?") from error


def notebook_place(line: Line, job: str) -> NotebookPlace:
    """Raises Conflict while its server does not listen yet."""
    with open_channel(line, job, "notebook") as channel:
        for said in channel.receive():
            if isinstance(said, dict) and NOTEBOOK in said:
                return NotebookPlace(**said[NOTEBOOK])
            if isinstance(said, dict) and REFUSED in said:
                raise Conflict(**said[REFUSED])
    raise ServerUnreachable("the channel ended without an answer")
