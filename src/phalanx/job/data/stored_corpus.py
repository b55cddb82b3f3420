"""Finds the objects under URLs of stores: one object, all below a folder, or those that match a pattern."""

import fnmatch
import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from phalanx.core.errors import DataError, NotFound, SetupError, SpecError, UserError
from phalanx.job.data.file_pieces import File
from phalanx.job.data.object_files import opened, patient
from phalanx.storage.objects import ObjectInfo
from phalanx.storage.places import checked_key, parse_place

_MAGIC: Final = re.compile(r"[*?\[]")
_QUERY: Final = re.compile(r"\?[\w.-]+=")
SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules"})
"""Not entered, on a disk or in a store."""


def is_url(path: str) -> bool:
    return "://" in path


def find_objects(url: str) -> tuple[tuple[File, ...], bool]:
    """The objects in the order of their names, and whether the URL names the very object.

    Raises DataError where there is none, SetupError for a bucket that is not there or refuses, StoreUnavailable.
    """
    base, rest = _checked(url)
    try:
        if _MAGIC.search(rest):
            return _matching(url, base, rest), False
        if rest and not rest.endswith("/") and (info := _head(base, rest)):
            return (_file(base, rest.rpartition("/")[2], info),), True
        found = _below(base, rest.strip("/"))
        files = tuple(sorted(_file(base, name, info) for name, info in found if not _is_hidden(name)))
    except SpecError as error:
        raise DataError("paths", url, error.fix) from error
    except UserError as error:
        raise error if isinstance(error, DataError) else SetupError("paths", url, error.fix) from error
    if not files:
        raise DataError("paths", url, "holds no object; look for a mistyped prefix, which a store cannot tell from an empty one")
    return files, False


def _checked(url: str) -> tuple[str, str]:
    """The bucket's URL, and the rest without its quoting."""
    scheme, _, rest = url.partition("://")
    bucket, _, rest = rest.partition("/")
    if _QUERY.search(url):
        parse_place(url, "paths")  # says that credentials stay out of URLs
    place = parse_place(f"{scheme}://{bucket}", "paths")
    if place.scheme not in ("s3", "gs", "az"):
        raise SetupError("paths", url[:200], "write a path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix")
    return place.url, unquote(rest)


def _head(base: str, key: str) -> ObjectInfo | None:
    try:
        return patient(lambda: opened(base).head(key))
    except NotFound:
        return None


def _below(base: str, folder: str) -> Iterator[tuple[str, ObjectInfo]]:
    """All objects of a folder with their names in it."""
    cut = len(folder) + 1 if folder else 0
    for info in patient(lambda: list(opened(base).list(folder))):
        yield info.key[cut:], info


def _matching(url: str, base: str, pattern: str) -> tuple[File, ...]:
    plain = pattern[: _MAGIC.search(pattern).start()].rpartition("/")[0]  # type: ignore[union-attr]  # it was found before
    wanted = re.compile(translated(pattern[len(plain) :].lstrip("/")), re.DOTALL)
    found = _below(base, plain)
    files = tuple(sorted(_file(base, name, info) for name, info in found if wanted.fullmatch(name) and not _is_hidden(name)))
    if not files:
        raise DataError("paths", url, "matches no object; ** stands for any folders, * and ? for letters of one name")
    return files


def translated(pattern: str) -> str:
    """A regular expression of a pattern: ** matches across '/', * and ? within a name, [abc] one letter of these, [!abc] one of all
    others."""
    parts = []
    for token in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|.", pattern, re.DOTALL):
        if token.startswith("[") and len(token) > 1:
            parts.append(f"(?!/){fnmatch.translate(token).removesuffix(chr(92) + 'Z')}")
        else:
            parts.append(_TOKENS.get(token) or re.escape(token))
    return "".join(parts)


_TOKENS: Final = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _is_hidden(name: str) -> bool:
    *folders, last = name.split("/")
    return last.startswith(".") or any(one.startswith(".") or one in SKIPPED_FOLDERS for one in folders)


def _file(base: str, name: str, info: ObjectInfo) -> File:
    try:
        checked_key(info.key)
    except SpecError:  # no key that every store would take
        return File(name, f"{base}/{info.key}", None)
    return File(name, f"{base}/{info.key}", info.size_bytes, info.etag)
