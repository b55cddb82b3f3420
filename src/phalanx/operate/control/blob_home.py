"""Where a home keeps its blobs: chosen once, remembered in `store.json`, never changed by accident.

Without a choice they lie in the home's `blobs/`, and nothing is remembered, so that a home may be moved. Elsewhere an object names
the home that they belong to: two homes in one place would collect each other's blobs as garbage.
"""

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from phalanx.core.errors import Conflict, NotFound, SetupError, StoreUnavailable
from phalanx.storage.atomic import write_atomic
from phalanx.storage.blobs import BlobStore
from phalanx.storage.objects import ObjectStore, open_store
from phalanx.storage.places import parse_place
from phalanx.storage.remote import Patience

FILE: Final = "store.json"
OWNER: Final = "phalanx-owner.json"
VARIABLE: Final = "PHALANX_STORE"
PATIENCE: Final = Patience(connect_s=5.0, request_s=60.0, retries_s=10.0, retries_max=5)
"""Somebody waits for the answer and can ask again."""

LOOK: Final = Patience(connect_s=5.0, request_s=10.0, retries_s=5.0, retries_max=3)
"""A store that accepts connections and answers nothing must not keep the server from starting."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Remembered:
    """url: '' for the home's own folder. id: of the home, '' before it ever left that."""

    url: str = ""
    id: str = ""


def remembered(home: Path) -> Remembered:
    """What the home knows. Raises SetupError for a file that nobody could follow."""
    file = home / FILE
    try:
        data = json.loads(file.read_bytes())
        return Remembered(str(data["url"]), str(data["id"]))
    except FileNotFoundError:
        return Remembered()
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "cannot be read; remove it, and say with --store where the blobs are"
        raise SetupError("store", str(file), fix) from error


def choice(home: Path, asked: str, environ: Mapping[str, str]) -> str:
    """The URL that the next server shall begin to use, '' to go on as before: what --store says, else PHALANX_STORE.

    Raises SetupError for a URL that is none, and for a PHALANX_STORE that is not what the home remembers.
    """
    if asked:
        place = parse_place(asked, "--store")
        if place.scheme == "file" and not place.path.parent.is_dir():  # a slip of the pen must not move every blob
            raise SetupError("--store", asked, f"there is no folder {place.path.parent}; make it first, or mend the path")
        return place.url
    variable = environ.get(VARIABLE, "")
    if not variable:
        return ""
    url, known = parse_place(variable, VARIABLE).url, remembered(home)
    if known.url and known.url != url:
        fix = f"this home's blobs are in {known.url}; unset it, or say --store {url} to move them there"
        raise SetupError(VARIABLE, url, fix)
    if not known.url and _has_blobs(home) and url != _own(home):
        raise SetupError(VARIABLE, url, f"this home's blobs are in {_own(home)}; unset it, or say --store {url} to move them there")
    return url


def check_change(home: Path, url: str, running: bool) -> None:
    """Whether a server could begin to use `url`. Raises Conflict while one runs with another, SetupError, StoreUnavailable."""
    now = remembered(home).url or _own(home)
    if not url or url == now:
        return
    if running:
        raise Conflict("store", url, f"the platform is up with {now}; `phalanx down` first")
    _opened(home, url)


def open_blobs(home: Path, url: str = "", on_progress: Callable[[], None] = lambda: None) -> BlobStore:
    """The home's blobs, in `url` from now on, or where they are without one; what lies elsewhere is copied first.

    A remembered store that is away on the network now is no reason not to start. Raises SetupError for one that cannot be used,
    belongs to another home or is not what was remembered; StoreUnavailable for a new one that is away, and for a folder that is not
    there: made again it would take blobs that nobody finds once its disk is mounted.
    """
    known = remembered(home)
    now = known.url or _own(home)
    if url and url != now:
        return _change(home, known, now, url, on_progress)
    if not known.url:
        return BlobStore(open_store(home / "blobs"))
    try:
        look = open_store(now, patience=LOOK, make=False)
        look.check()
        _check_owner(home, look, known.id)
    except StoreUnavailable as error:
        log.warning("store_away", error=str(error))
    return BlobStore(open_store(now, patience=PATIENCE, make=False))


def _change(home: Path, known: Remembered, now: str, url: str, on_progress: Callable[[], None]) -> BlobStore:
    objects = _opened(home, url)
    home_id = known.id or secrets.token_hex(16)
    own = url == _own(home)
    if not own:
        _remember(home, Remembered(known.url, home_id))  # first, or after a crash the place would look like another home's
        _claim(objects, home_id)
    blobs = BlobStore(objects)
    _copy(now, blobs, on_progress)
    _remember(home, Remembered("" if own else url, home_id))
    log.info("store_changed", before=now, now=url)
    return blobs


def _remember(home: Path, known: Remembered) -> None:
    write_atomic(home / FILE, json.dumps({"url": known.url, "id": known.id}).encode() + b"\n", 0o600)


def _opened(home: Path, url: str) -> ObjectStore:
    objects = open_store(url, patience=PATIENCE)
    if objects.place.scheme == "memory":
        raise SetupError("store", url, "keeps nothing when the server ends; choose a folder or a bucket")
    objects.check()
    owner = _owner(objects)
    if owner and owner != remembered(home).id:
        raise _belongs_to_another(objects)
    return objects


def _claim(objects: ObjectStore, home_id: str) -> None:
    objects.put_if_absent(OWNER, json.dumps({"home": home_id}).encode())
    if _owner(objects) != home_id:
        raise _belongs_to_another(objects)


def _check_owner(home: Path, objects: ObjectStore, home_id: str) -> None:
    owner = _owner(objects)
    if not owner:
        gone = f"if it is gone for good, remove {home / FILE} and choose again"
        fix = f"has no {OWNER} any more: mount its disk, or bring it back; {gone}"
        raise SetupError("store", objects.url, fix)
    if owner != home_id:
        raise _belongs_to_another(objects)


def _owner(objects: ObjectStore) -> str:
    try:
        return str(json.loads(objects.get(OWNER))["home"])
    except NotFound:
        return ""
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError("store", objects.url, f"its {OWNER} is damaged; choose another prefix") from error


def _belongs_to_another(objects: ObjectStore) -> SetupError:
    fix = f"belongs to another home, as its {OWNER} says; choose another prefix, such as {objects.url}/mine"
    return SetupError("store", objects.url, fix)


def _copy(before: str, blobs: BlobStore, on_progress: Callable[[], None]) -> None:
    """Jobs name the old blobs too. They stay where they are, so a crash half-way costs nothing."""
    try:
        old = BlobStore(open_store(before))
        for blob in old.list():
            on_progress()
            if not blobs.has(blob.sha256):
                try:
                    blobs.put(old.get(blob.sha256))
                except NotFound as error:
                    log.warning("blob_not_copied", error=str(error))
    except StoreUnavailable as error:
        fix = f"the home's blobs are to be copied there, and something is away ({error}); try again once both can be reached"
        raise SetupError("store", blobs.url, fix) from error


def _own(home: Path) -> str:
    return parse_place(str(home / "blobs")).url


def _has_blobs(home: Path) -> bool:
    return any((home / "blobs").glob("??/*"))
