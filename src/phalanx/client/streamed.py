"""Streams of events over either of httpx's clients."""

from collections import deque
from typing import Any

import httpx

from phalanx.client.heard import Heard, Reader
from phalanx.client.http import check_stream, is_stream, listening, unanswered, unreadable
from phalanx.client.steps import Listen


class Stream:
    """One that is open, for a client that waits in its thread."""

    def __init__(self, http: httpx.Client, url: str, asked: Listen) -> None:
        """Raises the error that the answer stands for."""
        self._url, self._limit_s = url, http.timeout.read
        request = http.build_request("GET", f"/api/v1{asked.path}", **listening(asked.params, asked.last))
        try:
            self._response = http.send(request, stream=True)
            if not is_stream(self._response):
                self._response.read()
        except httpx.TransportError as error:
            raise unanswered(error, url, self._limit_s) from error
        self._reader, self._whole = Reader(), deque[Heard]()
        try:
            check_stream(self._response, url)
        except BaseException:
            self.close()
            raise
        self._bytes = self._response.iter_bytes()

    def hear(self) -> Heard | None:
        """The next event; None at the end. Raises ServerUnreachable."""
        try:
            while not self._whole:
                piece = next(self._bytes, None)
                if piece is None:
                    return None
                self._whole.extend(self._reader.feed(piece))
        except httpx.TransportError as error:
            raise unanswered(error, self._url, self._limit_s) from error
        except ValueError as error:
            raise unreadable(self._url, error) from error
        return self._whole.popleft()

    def close(self) -> None:
        """The server hears of it."""
        self._response.close()


class AsyncStream:
    """The same, on an event loop."""

    def __init__(self, url: str, limit_s: float | None, response: httpx.Response) -> None:
        self._url, self._limit_s, self._response = url, limit_s, response
        self._reader, self._whole = Reader(), deque[Heard]()
        self._bytes: Any = response.aiter_bytes()

    @classmethod
    async def opened(cls, http: httpx.AsyncClient, url: str, asked: Listen) -> "AsyncStream":
        """Raises the error that the answer stands for."""
        request = http.build_request("GET", f"/api/v1{asked.path}", **listening(asked.params, asked.last))
        try:
            response = await http.send(request, stream=True)
            if not is_stream(response):
                await response.aread()
        except httpx.TransportError as error:
            raise unanswered(error, url, http.timeout.read) from error
        try:
            check_stream(response, url)
        except BaseException:
            await response.aclose()
            raise
        return cls(url, http.timeout.read, response)

    async def hear(self) -> Heard | None:
        """The next event; None at the end. Raises ServerUnreachable."""
        try:
            while not self._whole:
                piece = await anext(self._bytes, None)
                if piece is None:
                    return None
                self._whole.extend(self._reader.feed(piece))
        except httpx.TransportError as error:
            raise unanswered(error, self._url, self._limit_s) from error
        except ValueError as error:
            raise unreadable(self._url, error) from error
        return self._whole.popleft()

    async def close(self) -> None:
        """The server hears of it."""
        await self._response.aclose()
