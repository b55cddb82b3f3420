"""A TCP connection between two keepers of one gang: both prove that they have its secret, and no byte of either is taken unproved.

Each side's messages carry a BLAKE3 keyed with a secret of this connection, made of the gang's and of both sides' nonces: nothing of
another connection, of the other direction, or out of turn passes. It hides nothing, no more than a gang's own traffic does.
"""

import hmac
import secrets
import socket
from typing import Any, Final

from blake3 import blake3

from phalanx.core import wire
from phalanx.core.errors import Unauthorized

NONCE_BYTES: Final = 32
MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
CHUNK_BYTES: Final = 4 * 1024 * 1024
_CONTEXT: Final = "phalanx keepers 2026-11 replicas"


class Channel:
    """From `agree`. Every method raises OSError when the other side is gone or silent, Unauthorized for what it did not prove."""

    def __init__(self, connection: socket.socket, send_key: bytes, read_key: bytes) -> None:
        self._connection = connection
        self._keys = {True: send_key, False: read_key}
        self._counts = {True: 0, False: 0}

    def say(self, kind: Any, message: Any) -> None:
        data = wire.dumps(kind, message).encode()
        self._connection.sendall(len(data).to_bytes(8, "big") + data + self._proof(True, data))

    def hear(self, kind: Any) -> Any:
        """Raises Unauthorized also for what is no `kind`."""
        length = int.from_bytes(self._exactly(8), "big")
        if length > MESSAGE_BYTES_MAX:
            raise Unauthorized("replica", length, "is longer than any message of a keeper")
        data = self._exactly(length)
        self._check(data, self._exactly(NONCE_BYTES))
        try:
            return wire.loads(kind, data)
        except ValueError as error:
            raise Unauthorized("replica", None, f"is no message of a keeper ({error})") from error

    def pour(self, data: memoryview) -> None:
        """Sends bulk, and its proof."""
        proof = self._begun(True)
        for at in range(0, len(data), CHUNK_BYTES):
            chunk = data[at : at + CHUNK_BYTES]
            self._connection.sendall(chunk)
            proof.update(chunk)
        self._connection.sendall(proof.digest())

    def fill(self, data: memoryview) -> None:
        """Reads as many bytes as `data` has into it; only when it returns are they what the other side sent."""
        proof = self._begun(False)
        for at in range(0, len(data), CHUNK_BYTES):
            chunk = data[at : at + CHUNK_BYTES]
            self._read_into(chunk)
            proof.update(chunk)
        if not hmac.compare_digest(proof.digest(), self._exactly(NONCE_BYTES)):
            raise Unauthorized("replica", None, "was changed on its way")

    def _begun(self, sends: bool) -> "blake3":
        self._counts[sends] += 1
        return blake3(self._counts[sends].to_bytes(8, "big"), key=self._keys[sends])

    def _proof(self, sends: bool, data: bytes) -> bytes:
        return self._begun(sends).update(data).digest()

    def _check(self, data: bytes, told: bytes) -> None:
        if not hmac.compare_digest(self._proof(False, data), told):
            raise Unauthorized("replica", None, "is not from a keeper of this gang")

    def _exactly(self, length: int) -> bytes:
        data = bytearray(length)
        self._read_into(memoryview(data))
        return bytes(data)

    def _read_into(self, view: memoryview) -> None:
        while len(view):
            count = self._connection.recv_into(view)
            if not count:
                raise ConnectionError("the other keeper has hung up")
            view = view[count:]


def agree(connection: socket.socket, secret: str, called: bool) -> Channel:
    """Both sides call this first. called: whether this side was called, as opposed to the caller.

    Raises Unauthorized when the other side does not have the secret, OSError when it is gone.
    """
    key = blake3(secret.encode(), derive_key_context=_CONTEXT).digest()
    mine = secrets.token_bytes(NONCE_BYTES)
    connection.sendall(mine)
    theirs = _nonce(connection)
    nonces = theirs + mine if called else mine + theirs
    keys = {side: blake3(side + nonces, key=key).digest() for side in (b"called", b"caller")}
    sides = (b"called", b"caller") if called else (b"caller", b"called")
    channel = Channel(connection, keys[sides[0]], keys[sides[1]])
    channel.say(str, "keeper")
    channel.hear(str)
    return channel


def _nonce(connection: socket.socket) -> bytes:
    data = b""
    while len(data) < NONCE_BYTES:
        got = connection.recv(NONCE_BYTES - len(data))
        if not got:
            raise ConnectionError("the other keeper has hung up")
        data += got
    return data
