"""What an environment is made of, and so its name: the same bytes, Python and machine give the same environment. Pure but for
`read_lock`."""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from phalanx.core.lock_file import LockKind, beside, checked_lock, kind_of, requirement_lines

FORMAT: Final = 1
"""Part of every key: a change of how environments are built must not meet those built before."""
_PYTHON_VERSION: Final = ".python-version"
_READ_BESIDE: Final[Mapping[LockKind, tuple[str, ...]]] = {
    "uv": ("pyproject.toml", _PYTHON_VERSION, "uv.toml"),
    "requirements": (_PYTHON_VERSION, "uv.toml"),
}
_URL: Final = r"(?:git\+)?(?:https?|ssh)://\S+"
_NAMED: Final = re.compile(
    rf"[A-Za-z0-9][A-Za-z0-9._-]*\s*(?:\[[^\]]*\])?\s*(?:@\s*{_URL}|\(?[<>=!~][^;@/]*)?(?:;[^@]*?)?(?:\s--hash[=\s]\S+)*"
)
_ARCHIVE: Final = re.compile(r"[^\s@;=<>]+\.(?:whl|zip|tgz|tar(?:\.\w+)?)(?:\s|;|\[|$)", re.IGNORECASE)
"""A file even without a folder before it."""
_URL_OPTION: Final = re.compile(rf"(?:-i|--index-url|--extra-index-url|-f|--find-links)[=\s]\s*{_URL}")
_PLAIN_OPTION: Final = re.compile(
    r"--(?:no-index|pre|require-hashes|prefer-binary|(?:no-binary|only-binary)[=\s][A-Za-z0-9:._,-]+)"
)


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock as it lies in a work folder. files: its bytes and those of what uv reads beside it, by name in the workdir.
    local: it may refer to other files of the workdir, or to paths of the node. python: the version it asks uv for, or ''."""

    name: str
    kind: LockKind
    files: Mapping[str, bytes]
    local: bool
    hashed: bool
    python: str


def read_lock(work: Path, name: str) -> Lock:
    """Raises SpecError for what is not a lock, OSError."""

    def read(inner: str) -> bytes | None:
        path = work / inner
        return path.read_bytes() if path.is_file() else None

    text = checked_lock(name, read, "is not in the packed workdir; submit the job again with it")
    kind = kind_of(name)
    assert kind is not None  # it was checked
    names = [name, *(beside(name, other) for other in _READ_BESIDE[kind])]
    files = {name: content for name in names if (content := read(name)) is not None}
    local = _lock_is_local(text) if kind == "uv" else not all(map(_is_plain, requirement_lines(text)))
    hashed = kind == "requirements" and any("--hash" in line for line in requirement_lines(text))
    return Lock(name, kind, files, local, hashed, _python(files.get(beside(name, _PYTHON_VERSION), b"")))


def environment_key(lock: Lock, python: str, platform: str, code: str) -> str:
    """SHA-256 over everything that the environment depends on. python: implementation and version of the platform's own. code: of
    the packed workdir, which counts where the lock refers to paths."""
    parts = {
        "format": FORMAT,
        "kind": lock.kind,
        "files": {_role(name, lock): hashlib.sha256(content).hexdigest() for name, content in lock.files.items()},
        "python": lock.python or python,
        "platform": platform,
        "code": [code, lock.name] if lock.local else [],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _role(name: str, lock: Lock) -> str:
    """A requirements file may have any name, which must not tell two apart."""
    return "lock" if name == lock.name else PurePosixPath(name).name


def _is_plain(line: str) -> bool:
    """Whether the line surely means the same in every folder. One not understood counts as local, which only costs sharing."""
    if _ARCHIVE.match(line):
        return False
    return any(pattern.fullmatch(line) for pattern in (_NAMED, _URL_OPTION, _PLAIN_OPTION))


def _lock_is_local(text: str) -> bool:
    """Whether any package but the project itself comes from a path."""
    packages = tomllib.loads(text).get("package", [])
    return any(_is_local_source(package.get("source", {})) for package in packages if isinstance(package, dict))


def _is_local_source(source: Any) -> bool:
    if not isinstance(source, dict):
        return False
    if {"virtual", "editable"} & set(source):
        return "." not in (source.get("virtual"), source.get("editable"))
    place = source.get("registry") or source.get("url") or source.get("git")
    return "path" in source or "directory" in source or (isinstance(place, str) and "://" not in place)


def _python(content: bytes) -> str:
    """The first version that a .python-version file names."""
    lines = (line.partition("#")[0].strip() for line in content.decode(errors="replace").splitlines())
    return next((line for line in lines if line), "")
