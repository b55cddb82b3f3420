"""Where objects lie: a URL from a user, read with suspicion, as a `Place`.

    /path or file:///path · memory:// · s3://bucket/prefix · gs://bucket/prefix
    az://container/prefix · abfs://container@account.dfs.core.windows.net/prefix

No URL carries credentials: it is remembered, logged and shown.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from phalanx.core.errors import SetupError, SpecError

Scheme = Literal["file", "memory", "s3", "gs", "az"]

KEY_BYTES_MAX: Final = 800
"""With a prefix before it a key still fits into S3's 1,024 bytes."""

PREFIX_BYTES_MAX: Final = 200
SEGMENT_BYTES_MAX: Final = 200
"""A file name has room for 255; while a file is written its name is longer."""

_KNOWN: Final = "a path, file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or memory://"
_ALIASES: Final[dict[str, Scheme]] = {
    "": "file", "file": "file", "memory": "memory", "s3": "s3", "s3a": "s3", "gs": "gs",
    "az": "az", "abfs": "az", "abfss": "az",
}  # fmt: skip
_BUCKET: Final[dict[Scheme, re.Pattern[str]]] = {
    "s3": re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
    "gs": re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]"),
    "az": re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}|\$root|\$web"),
}
_ACCOUNT: Final = re.compile(r"[a-z0-9]{3,24}")
_UNFINISHED: Final = re.compile(r"#[0-9]+$")
"""How a local store names a file that is still being written; no listing shows it."""

_USER: Final = re.compile(r"//(?:[^/@]*@|[^@]*:[^@]*@|[^/@]*:[^/]*)")
"""A secret key may hold a slash, at which a URL's user and password end early and look like a bucket with a port."""


@dataclass(frozen=True, slots=True)
class Place:
    """One store. `bucket` of az is the container; `account` is for az alone; `path` for file alone."""

    scheme: Scheme
    bucket: str = ""
    prefix: str = ""
    account: str = ""
    path: Path = Path()

    @property
    def url(self) -> str:
        """As people and the home's record name it."""
        match self.scheme:
            case "file":
                return self.path.as_uri()
            case "memory":
                return "memory://"
            case "az" if self.account:
                base = f"abfs://{self.bucket}@{self.account}.dfs.core.windows.net"
            case _:
                base = f"{self.scheme}://{self.bucket}"
        return f"{base}/{self.prefix}" if self.prefix else base


def parse_place(text: str, field: str = "store") -> Place:
    """The place that `text` names. Raises SetupError saying what is wrong with it."""
    if not text or any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise _bad(field, text, f"write {_KNOWN}, without control characters")
    if "://" not in text:
        return Place("file", path=_absolute(field, text, text))
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise _bad(field, text, f"is no URL ({error}); write {_KNOWN}") from error
    scheme = _ALIASES.get(parts.scheme)
    if scheme is None:
        raise _bad(field, text, f"has an unknown scheme; write {_KNOWN}")
    if scheme != "file" and ("?" in text or "#" in text):
        raise _bad(field, text, "has a query or fragment; leave it out, credentials come from the environment")
    if scheme == "file":
        return _file(field, text, parts)
    if scheme == "memory":
        if parts.netloc or parts.path.strip("/"):
            raise _bad(field, text, "write memory:// alone")
        return Place("memory")
    return _bucket(field, text, scheme, parts)


def checked_key(key: str, field: str = "key") -> str:
    """`key` itself when it may name an object. Raises SpecError: keys come from users."""
    if problem := _problem(key, KEY_BYTES_MAX):
        raise SpecError(field, key[:200], f"{problem}; write a relative name such as run/part-0.bin")
    return key


def _file(field: str, text: str, parts: SplitResult) -> Place:
    if parts.netloc not in ("", "localhost"):
        raise _bad(field, text, "names another machine; write file:///path with three slashes")
    rest = text.partition("://")[2]
    return Place("file", path=_absolute(field, text, unquote(rest[len(parts.netloc) :])))


def _absolute(field: str, text: str, path: str) -> Path:
    if not path.strip("/") or ".." in Path(path).parts or "\0" in path:
        raise _bad(field, text, "name a folder, without '..'")
    return Path(path).expanduser().absolute()


def _bucket(field: str, text: str, scheme: Scheme, parts: SplitResult) -> Place:
    user, at, host = parts.netloc.rpartition("@")
    account = ""
    if at and scheme == "az" and ":" not in user:
        account, host = host.partition(".")[0], user
        if _ACCOUNT.fullmatch(account) is None:
            raise _bad(field, text, "write abfs://container@account.dfs.core.windows.net/prefix")
    elif at:
        raise _bad(field, text, "holds a user or password; leave it out, credentials come from the environment")
    if ":" in host:
        raise _bad(field, text, "holds a user, password or port; leave it out, credentials and endpoint come from the environment")
    if not host:
        raise _bad(field, text, f"names no bucket; write {scheme}://bucket/prefix")
    if _BUCKET[scheme].fullmatch(host) is None:
        raise _bad(field, text, f"{host!r} cannot be a bucket's name; use small letters, digits and '-'")
    prefix = unquote(parts.path).strip("/")
    if prefix and (problem := _problem(prefix, PREFIX_BYTES_MAX)):
        raise _bad(field, text, f"its prefix {problem}")
    return Place(scheme, bucket=host, prefix=prefix, account=account)


def _problem(key: str, bytes_max: int) -> str:
    """What keeps `key` from naming an object alike in every store; '' when nothing does."""
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        return "is not UTF-8"
    if not key or len(encoded) > bytes_max:
        return f"has {len(encoded)} bytes, not 1 to {bytes_max}"
    if not key.isprintable() or "\\" in key:
        return "has a control character or '\\'"
    for part in key.split("/"):
        if part in ("", ".", ".."):
            return "is absolute, or has an empty, '.' or '..' part"
        if len(part.encode()) > SEGMENT_BYTES_MAX:
            return f"has a part over {SEGMENT_BYTES_MAX} bytes"
        if _UNFINISHED.search(part):
            return "has a part that ends in '#' and digits"
    return ""


def _bad(field: str, text: str, fix: str) -> SetupError:
    """Without what may be a password before an '@', or a signature in a query."""
    shown = _USER.sub("//***@", re.split(r"[?#]", text, maxsplit=1)[0]) if "://" in text else text
    return SetupError(field, shown[:200], fix)
