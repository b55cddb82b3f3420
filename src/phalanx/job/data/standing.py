"""The data set that stands where one is to be made: without being told to, only the very same one is made again there.

What the new manifest will say is compared as far as it is known before the work begins, and whole before the folder is replaced.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from phalanx.core.errors import Conflict, DataError
from phalanx.job.data import manifest as manifests

_FIX: Final = "give --force to replace it, or another --out"
_OURS: Final = frozenset({"format", "parameters", "shards"})
_LONG: Final = 60
_SHOWN: Final = 3


def is_prepared(folder: Path) -> bool:
    """Whether a command of ours made the folder, be it of tokens or of samples, and of whatever version."""
    try:
        said = json.loads(manifests.load(folder))
    except (DataError, ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.keys() >= _OURS


def check_same(out: Path, force: bool, wanted: Mapping[str, Any], parts: Sequence[str] | None = None) -> None:
    """wanted: what the manifest will say, as far as it is known, by its fields as they lie in JSON. parts: names of its sources, or
    of the shards of samples. Raises Conflict for a data set at `out` that says something else, unless `force`."""
    if force or (said := _said(out)) is None:
        return
    if parts is not None and _parts(said) != list(parts):
        raise _another(out, said, f"asked is one of {_few(parts)}")
    found = _flat(said)
    for name, value in _flat(wanted).items():
        if (old := found.get(name)) != value:
            raise _another(out, said, _differs(name, old, value))


def check_no_data(out: Path, force: bool) -> None:
    """Raises Conflict for any prepared folder at `out`, unless `force`: what is made is none, so it cannot be the same."""
    if not force and (said := _said(out)) is not None:
        raise _another(out, said, "")


def check_replaced(folder: Path, out: Path, force: bool) -> None:
    """Raises Conflict unless `folder` is what stands at `out`, by its manifest, and has a file for each of that, or `force`."""
    if force or not out.is_dir():
        return
    if any(out.iterdir()) and _bytes(folder) != _bytes(out):
        raise _another(out, _said(out) or {}, "of other contents than this one")
    check_only(out, {path.name for path in folder.iterdir()})


def check_only(out: Path, names: set[str]) -> None:
    """Raises Conflict for a file at `out` that is none of these: it would go with the folder."""
    if more := sorted(path.name for path in out.iterdir() if path.name not in names):
        raise Conflict("out", str(out), f"also holds what no data set has ({_few(more)}); move it away, {_FIX}")


def _said(out: Path) -> dict[str, Any] | None:
    data = _bytes(out)
    return json.loads(data) if data is not None and is_prepared(out) else None


def _bytes(folder: Path) -> bytes | None:
    try:
        return manifests.load(folder)
    except DataError:
        return None


def _flat(said: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters beside all else, as nobody knows which of the fields are parameters."""
    return {**{name: value for name, value in said.items() if name != "parameters"}, **said.get("parameters", {})}


def _parts(said: Mapping[str, Any]) -> list[str]:
    return [one["name"] for one in said["shards" if said.get("kind") == "samples" else "sources"]]


def _another(out: Path, said: Mapping[str, Any], why: str) -> Conflict:
    return Conflict("out", str(out), f"holds another data set ({'; '.join(filter(None, [_made_of(said), why]))}); {_FIX}")


def _made_of(said: Mapping[str, Any]) -> str:
    if said.get("kind") == "samples":
        return f"{said.get('samples')} samples, made by `{said['parameters'].get('made_by', 'others')}`"
    return f"made of {_few([source['name'] for source in said.get('sources', ())])}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _differs(name: str, old: object, new: object) -> str:
    """Only numbers and words are told: whole tables say nothing."""
    if isinstance(new, (dict, list)) or old is None or len(f"{old}{new}") > _LONG:
        return f"other {name}"
    return f"{name} {old} where {new} is asked"
