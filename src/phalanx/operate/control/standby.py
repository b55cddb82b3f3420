"""What a standby needs beside the database, looked for when it starts: at a takeover it would be too late to say so."""

from collections.abc import Iterator
from pathlib import Path

from phalanx.core.errors import SetupError
from phalanx.operate.control import auth, blob_home, gang_keys, secrets
from phalanx.operate.control.leadership import Holder, is_here
from phalanx.operate.control.store import Store


def check(home: Path, store: Store, leader: Holder | None) -> tuple[str, ...]:
    """What is not there after a takeover and that one can live without, in words; nothing for a standby in the leader's own home, a
    folder of that name on another machine being none, nor where nobody ever led. Raises SetupError that names every file without
    which this home cannot lead, StoreUnavailable."""
    if leader is not None and leader.home == str(home) and is_here(leader):
        return ()
    if leader is None and not store.tokens():
        return ()
    lacks = [*_files_lacking(home, store)]
    if lacks:
        where = f"{leader.home} on {leader.host}" if leader else "the home that led last"
        fix = f"lacks what a standby needs beside the database: {', '.join(lacks)}; copy it from {where}"
        raise SetupError("home", str(home), fix)
    return tuple(_living_without(home))


def _files_lacking(home: Path, store: Store) -> Iterator[str]:
    known = store.tokens()
    for role, name in auth.FILES.items():
        file = home / name
        token = file.read_text(encoding="ascii", errors="replace").strip() if file.exists() else ""
        if known and known.get(auth.digest(token)) != role:
            yield name if not token else f"{name} (another one is there)"
    if not (home / gang_keys.KEY_FILE).exists():
        yield gang_keys.KEY_FILE
    if store.revision() < secrets.FIRST_OF_TEAMS:  # behind a leader of an older version, whose secrets lie elsewhere
        return
    kept = secrets.Secrets(home, store, lambda: 0)
    if not (home / secrets.KEY_FILE).exists():
        yield from [secrets.KEY_FILE] if kept.views() else []
        return
    try:
        kept.check_key()
    except SetupError as error:
        yield f"{secrets.KEY_FILE} (the one that is there {error.fix.partition(',')[0]})"


def _living_without(home: Path) -> Iterator[str]:
    if not blob_home.remembered(home).url:
        yield "blobs lie in this home alone: packed workdirs of jobs that start anew are missing; use one --store for both"
    yield "the journal is not shared: logs and curves from before a takeover are read in the other home"
    yield "the tracker's runs are not shared, unless MLFLOW_TRACKING_URI names one for both"
