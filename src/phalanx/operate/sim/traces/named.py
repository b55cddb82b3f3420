"""Traces by name, below a folder, or by file: which reader reads what."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from phalanx.core.errors import NotFound
from phalanx.operate.sim.traces import itp, muri, openb, philly, plain, swf
from phalanx.operate.sim.traces.errors import TraceError
from phalanx.operate.sim.traces.rows import likeness, opened
from phalanx.operate.sim.traces.trace import Trace

Reader = Callable[[Path], Trace]

_BY_HEAD: Final[Sequence[tuple[Sequence[str], Reader]]] = (
    (philly.COLUMNS, philly.read),
    (itp.COLUMNS, itp.read),
    (muri.COLUMNS, muri.read),
    (openb.TIMED_COLUMNS, openb.read),
    (openb.POD_COLUMNS, openb.read),
    (plain.COLUMNS, plain.read),
)
NAMES_SHOWN: Final = 20
"""Of the traces that there are, where one is named that is not."""

HEAD_SHOWN: Final = 80
"""Characters of a head that nobody knows."""

LIKE_MIN: Final = 0.5
"""A head that has so much of a format's columns was to be one of it: its reader says what is missing."""

_FOLDERS: Final[Mapping[str, str]] = MappingProxyType({"philly": "philly/jobs", "openb": "openb/pods_default"})
"""Short names to the file they mean."""


def read_trace(name: str, folder: Path | None) -> Trace:
    """'philly', 'itp/cluster01', 'muri/trace1', 'openb', 'openb/gpushare40' below `folder`, or a file of any known format. Raises
    NotFound and TraceError."""
    return read_file(file_of(name, folder))


def file_of(name: str, folder: Path | None) -> Path:
    """Where a trace is. Raises NotFound."""
    file = Path(name)
    return file if file.suffix or file.exists() else _below(name, folder)


def read_file(file: Path) -> Trace:
    """By its ending, or by the columns that its first line names."""
    if ".swf" in file.suffixes:
        return swf.read(file)
    head = _head(file)
    for columns, read in _BY_HEAD:
        if set(columns) <= set(head):
            return read(file)
    like, nearest = max(((likeness(head, columns), read) for columns, read in _BY_HEAD), key=lambda one: one[0])
    if like >= LIKE_MIN:
        return nearest(file)
    fix = f"names the columns of no known format; write {','.join(plain.COLUMNS)}, or those of another in docs/simulator.md"
    raise TraceError.at(file, 1, ",".join(head)[:HEAD_SHOWN], fix)


def _head(file: Path) -> list[str]:
    with opened(file) as text:
        return text.readline(10_000).strip().split(",")


def _below(name: str, folder: Path | None) -> Path:
    if folder is None:
        raise NotFound("trace", name, "is no file; say with --trace-dir where the named traces are, or name a file")
    first, _, rest = name.partition("/")
    pods = f"openb/pods_{rest}" if first == "openb" and rest else ""
    stem = _FOLDERS.get(name) or pods or name
    found = [path for ending in (".csv.gz", ".csv", ".swf.gz", ".swf") if (path := folder / f"{stem}{ending}").is_file()]
    if not found:
        raise NotFound("trace", name, f"is not in {folder}; there {_there(folder)}")
    return found[0]


def _there(folder: Path) -> str:
    """What people may have meant: names that would be read."""
    if not folder.is_dir():
        return "is no such folder"
    files = sorted(path for ending in ("csv", "csv.gz", "swf", "swf.gz") for path in folder.glob(f"*/*.{ending}"))
    names = dict.fromkeys(_name(path) for path in files if _is_trace(path))
    return f"are {', '.join(list(names)[:NAMES_SHOWN])}" if names else "is no trace"


def _name(file: Path) -> str:
    """As `file_of` finds it."""
    stem = f"{file.parent.name}/{file.name.partition('.')[0]}"
    short = next((name for name, of in _FOLDERS.items() if of == stem and "/pods_" not in of), stem)
    return short.replace("openb/pods_", "openb/")


def _is_trace(file: Path) -> bool:
    """Whether its first line is that of one: not the nodes of a trace, nor pods without times."""
    if ".swf" in file.suffixes:
        return True
    try:
        head = _head(file)
    except TraceError:
        return False
    return any(set(columns) <= set(head) for columns, _ in _BY_HEAD if columns is not openb.POD_COLUMNS)
