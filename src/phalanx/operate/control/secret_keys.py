"""The file of the home that holds the key of all secrets: one, or two while values go from the older to the newer.

One line a key, base64, the newest last. Values are sealed with the newest and opened with whichever fits, so that a crash between
any two steps of a rotation leaves all of them readable.
"""

import base64
import binascii
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.storage.atomic import write_atomic

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12  # of AES-GCM, NIST SP 800-38D
_AGAIN: Final = "or `phalanx secret rm` every name that `phalanx secret ls` shows and set them again under a new key"


class KeyFile:
    """Changes belong on the control thread."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, make: bool) -> tuple[bytes, ...]:
        """The keys, newest last. `make`: nothing is sealed, so where there is none that can be used a new one is made. Raises
        SetupError, StoreUnavailable."""
        try:
            lines = self._path.read_bytes().splitlines()
            if self._path.stat().st_mode & 0o077:
                self._path.chmod(0o600)
            keys = tuple(base64.b64decode(line.strip(), validate=True) for line in lines)
        except FileNotFoundError:
            if make:
                return self.write([os.urandom(KEY_BYTES)])
            raise self.unusable("is missing, so no stored secret can be opened; restore it from a backup") from None
        except OSError as error:
            raise self.unusable(f"cannot be read ({error.strerror}); make it readable for this user") from error
        except binascii.Error:
            keys = ()
        if keys and all(len(key) == KEY_BYTES for key in keys):
            return keys
        if make:
            return self.write([os.urandom(KEY_BYTES)])
        raise self.unusable("is damaged, so no stored secret can be opened; restore it from a backup")

    def write(self, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """Durable before the first value that only they open. Raises SetupError, StoreUnavailable."""
        write_atomic(self._path, b"".join(base64.b64encode(key) + b"\n" for key in keys), 0o600)
        return tuple(keys)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process of this home changes the file. Not waited for: one that is stopped may have it for ever. Raises
        StoreUnavailable."""
        lock = os.open(
            self._path.with_name(f"{self._path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise StoreUnavailable(f"{self._path} is changed by another process; ask again once that has ended") from error
        finally:
            os.close(lock)

    def replace(self, old: Sequence[bytes], new: Sequence[bytes]) -> None:
        """Where the file still has `old`. Raises SetupError, StoreUnavailable."""
        if self.read(make=False) != tuple(old):
            raise StoreUnavailable(f"{self._path} was changed meanwhile by another process; ask again")
        self.write(new)

    def unusable(self, why: str) -> SetupError:
        return SetupError("secret key", str(self._path), f"{why}, {_AGAIN}")

    def opened(self, keys: Sequence[bytes], name: str, text: str) -> bytes:
        """Raises SetupError where none of the keys fits."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 10 MB of memory, for homes with secrets only

        data = base64.b64decode(text)
        for key in reversed(keys):
            try:
                return AESGCM(key).decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], name.encode())
            except InvalidTag:
                continue
        raise self.unusable(f"is not the key that {name} was sealed with; restore it from a backup")


def seal(key: bytes, name: str, value: bytes) -> str:
    """Bound to its name, and team: a row's value put under another opens nothing."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, value, name.encode())).decode()
