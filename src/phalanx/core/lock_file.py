"""The file that `environment.lock` names: which kinds there are, and what is wrong with one. Pure: whoever has the files reads."""

import tomllib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Final, Literal

from phalanx.core.errors import SpecError

LockKind = Literal["uv", "requirements"]
Read = Callable[[str], bytes | None]
"""The content of a file of the workdir by its name there, or None when there is no such file."""

LOCK_BYTES_MAX: Final = 16 * 2**20


def kind_of(lock: str) -> LockKind | None:
    """By its name; None for a file that nothing is built from."""
    name = PurePosixPath(lock).name
    if name == "uv.lock":
        return "uv"
    return "requirements" if name.endswith(".txt") else None


def beside(lock: str, name: str) -> str:
    """The file `name` in the folder of the lock."""
    return str(PurePosixPath(lock).parent / name)


def checked_lock(lock: str, read: Read, absent: str) -> str:
    """The lock's text. `absent` says what a file that `read` does not find is, and what to change.

    Raises SpecError(field="environment.lock") for one of unknown kind, and for one that is absent, empty, too large or not text;
    likewise for the pyproject.toml beside a uv.lock.
    """
    kind = kind_of(lock)
    if kind is None:
        raise SpecError("environment.lock", lock, "name a uv.lock, or a requirements file whose name ends in .txt")
    text = _text(lock, read, absent)
    if kind == "requirements" and not requirement_lines(text):
        raise SpecError("environment.lock", lock, "names no package; list them, e.g. by `uv pip compile requirements.in`")
    if kind == "uv":
        for name, content in ((lock, text), (pyproject := beside(lock, "pyproject.toml"), _text(pyproject, read, absent))):
            _check_toml(name, content)
    return text


def requirement_lines(text: str) -> tuple[str, ...]:
    """The lines of a requirements file without comments, each with what it is continued by."""
    lines = [line.partition(" #")[0] for line in text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines()]
    return tuple(stripped for line in lines if (stripped := line.strip()) and not stripped.startswith("#"))


def _text(name: str, read: Read, absent: str) -> str:
    content = read(str(PurePosixPath(name)))
    if content is None:
        raise SpecError("environment.lock", name, absent)
    if len(content) > LOCK_BYTES_MAX:
        raise SpecError("environment.lock", name, f"has {len(content)} bytes; keep it under {LOCK_BYTES_MAX}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError("environment.lock", name, f"is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    if not text.strip():
        raise SpecError("environment.lock", name, "is empty; make it again, e.g. by `uv lock` or `uv pip compile`")
    return text


def _check_toml(name: str, text: str) -> None:
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise SpecError("environment.lock", name, f"is not TOML ({error}); make it again by `uv lock`") from error
