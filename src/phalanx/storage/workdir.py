"""A job's folder as one packed snapshot: packed where the user submits, unpacked where the ranks run.

The archive is a gzip-ed tar of plain files, folders and links that stay inside. What comes in to `unpack` is hostile:
nothing of it touches the disk outside a fresh folder, and the folder appears under its name only when all of it is good.
"""

import gzip
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Final, Literal

import pathspec

from phalanx.core.errors import SetupError, SpecError
from phalanx.core.units import show_size
from phalanx.storage.atomic import fsync_folder, refused

PACKED_BYTES_MAX: Final = 64 * 2**20
"""Sum of the files of a workdir that `pack` accepts."""
UNPACKED_BYTES_MAX: Final = 2**30
MEMBERS_MAX: Final = 100_000
IGNORE_FILE: Final = ".phalanxignore"
_NEVER_PACKED: Final = frozenset({".git", "__pycache__", ".venv"})
_READ_MAX: Final = 2**20
_HEADERS_BYTES_MAX: Final = MEMBERS_MAX * 3 * tarfile.BLOCKSIZE + tarfile.RECORDSIZE
_Kind = Literal["file", "folder", "link"]


def pack(folder: Path) -> bytes:
    """The folder as a gzip-ed tar; the same tree gives the same bytes.

    In a git checkout: tracked and unignored files; else everything but .git, __pycache__ and .venv. A `.phalanxignore` in the
    folder (gitignore syntax) leaves out more. Raises SpecError(field="workdir") for a missing folder, a link out of it, an
    unreadable file, or more than PACKED_BYTES_MAX.
    """
    if not folder.is_dir():
        raise SpecError("workdir", str(folder), "is not a folder; name an existing one")
    names = _chosen(folder)
    if len(names) > MEMBERS_MAX:
        raise SpecError("workdir", str(folder), f"has {len(names)} files, over {MEMBERS_MAX}; leave some out with {IGNORE_FILE}")
    try:
        _check_size(folder, names)
        return _tarred(folder, names)
    except OSError as error:
        raise SpecError("workdir", error.filename or str(folder), f"cannot be read ({error.strerror})") from error


def unpack(data: bytes, into: Path) -> None:
    """Unpacks what `pack` made as the folder `into`, which must be absent or empty.

    Raises SpecError for an archive that is damaged, too large, or has a member that is not a plain file, folder or link inside
    it; SetupError when `into` is in use or may not be written; StoreUnavailable for a full disk. Then `into` is as it was.
    """
    try:
        if into.is_symlink() or (into.exists() and (not into.is_dir() or any(into.iterdir()))):
            raise SetupError("path", str(into), "is in use; unpack into an absent or empty folder")
        into.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".unpack-", dir=into.parent))
        try:
            _Unpacking(fresh).run(data)
            fresh.chmod(0o755)
            fresh.rename(into)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        fsync_folder(into.parent)
    except OSError as error:
        raise refused(into, error) from error


def _chosen(folder: Path) -> list[str]:
    """Names relative to `folder` of all files and links to pack, sorted."""
    names = {name for name in _listed(folder, "") if _is_packable(folder, name)}
    ignore = folder / IGNORE_FILE
    if ignore.is_file():
        try:
            lines = ignore.read_text(encoding="utf-8").splitlines()
            spec = pathspec.GitIgnoreSpec.from_lines(lines)
        except (OSError, ValueError) as error:
            raise SpecError("workdir", str(ignore), f"cannot be read as gitignore patterns ({error})") from error
        names = {name for name in names if not spec.match_file(name)}
    for name in names:
        if name != name.encode(errors="replace").decode():
            raise SpecError("workdir", ascii(name), f"has a name that is not UTF-8; rename it or leave it out with {IGNORE_FILE}")
    return sorted(names)


def _is_packable(folder: Path, name: str) -> bool:
    """Sockets, pipes, and what git still tracks though it was deleted, or its folder became a link, are left out."""
    if any((folder / parent).is_symlink() for parent in PurePosixPath(name).parents[:-1]):
        return False
    return (folder / name).is_symlink() or (folder / name).is_file()


def _listed(folder: Path, prefix: str) -> Iterator[str]:
    for name in _walked(folder) if (tracked := _tracked(folder)) is None else tracked:
        inner = folder / name
        if inner.is_dir() and not inner.is_symlink():  # a submodule or a checkout inside this one
            yield from _listed(inner, f"{prefix}{name.rstrip('/')}/")
        else:
            yield prefix + name


def _walked(folder: Path) -> Iterator[str]:
    def stop(error: OSError) -> None:
        raise SpecError("workdir", error.filename, f"cannot be read ({error.strerror}); leave it out by moving it away")

    for here, folders, files in os.walk(folder, onerror=stop):
        base = Path(here)
        links = [name for name in folders if (base / name).is_symlink()]
        folders[:] = sorted(name for name in folders if name not in _NEVER_PACKED and name not in links)
        yield from ((base / name).relative_to(folder).as_posix() for name in (*files, *links) if name not in _NEVER_PACKED)


def _tracked(folder: Path) -> list[str] | None:
    """What git knows and does not ignore below `folder`; None outside a checkout, in an ignored folder, or without git."""
    if not any((place / ".git").exists() for place in (folder.absolute(), *folder.absolute().parents)):
        return None  # saves a process for plain folders
    if _git(folder, "check-ignore", "-q", ".") == b"":
        return None
    listing = _git(folder, "ls-files", "-coz", "--exclude-standard")
    return None if listing is None else [os.fsdecode(name) for name in listing.split(b"\0") if name]


def _git(folder: Path, *arguments: str) -> bytes | None:
    """Standard output, or None when git is absent or says no. Hooks and an environment that names another checkout are off."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def _check_size(folder: Path, names: Sequence[str]) -> None:
    sizes = {name: (folder / name).lstat().st_size for name in names}
    _refuse_large(folder, sizes)


def _refuse_large(folder: Path, sizes: Mapping[str, int]) -> None:
    total = sum(sizes.values())
    if total > PACKED_BYTES_MAX:
        largest = max(sizes, key=lambda name: sizes[name])
        raise SpecError(
            "workdir",
            str(folder),
            f"holds {show_size(total)}, over the limit of {show_size(PACKED_BYTES_MAX)}; the largest file is {largest} "
            f"({show_size(sizes[largest])}): leave out what the job does not need with a {IGNORE_FILE} file",
        )


def _tarred(folder: Path, names: Sequence[str]) -> bytes:
    packed = io.BytesIO()
    read: dict[str, int] = {}
    total = 0
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", filename="", mtime=0, compresslevel=6) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            path, member = folder / name, tarfile.TarInfo(name)
            if path.is_symlink():
                member.type, member.linkname = tarfile.SYMTYPE, str(path.readlink())
                if problem := _link_problem(name, member.linkname):
                    raise SpecError("workdir", str(path), f"is a link that {problem}; copy the target in, or leave it out")
                archive.addfile(member)
                continue
            content = _read(path)
            read[name], total = len(content), total + len(content)
            if total > PACKED_BYTES_MAX:  # a log may have grown since it was measured
                _refuse_large(folder, read)
            member.size, member.mode = len(content), 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _read(path: Path) -> bytes:
    """No more than makes the folder too large. A name that became a pipe meanwhile is not waited at."""
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(opened, "rb") as file:
        return file.read(PACKED_BYTES_MAX + 1)


def _link_problem(name: str, target: str) -> str:
    """What is wrong with a link of that name, or ''. Sound because no folder on a member's own path may be a link: the leading
    '..' climb real folders, and every later step goes down, at most through another link that was checked the same way."""
    parts = PurePosixPath(target).parts
    climbs = next((index for index, part in enumerate(parts) if part != ".."), len(parts))
    if not parts or target.startswith("/"):
        return f"points to {target!r}, not to a place relative to itself"
    if climbs > len(PurePosixPath(name).parent.parts):
        return f"points to {target!r}, outside the folder"
    if ".." in parts[climbs:]:
        return f"points to {target!r}, which goes down and up again"
    return ""


class _BoundedGzip(gzip.GzipFile):
    """Never yields more than an accepted archive can hold, nor much at once: tarfile reads a whole extended header into memory,
    and computes negative lengths from hostile ones."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _READ_MAX:
            raise SpecError("workdir", "archive", "has a header of impossible size; pack the folder with phalanx")
        if self.tell() > UNPACKED_BYTES_MAX + _HEADERS_BYTES_MAX:
            raise SpecError("workdir", "archive", f"unpacks to more than {show_size(UNPACKED_BYTES_MAX)}")
        return super().read(size)


class _Unpacking:
    """One unpacking into a fresh folder. Links are made last, so that no member can be written through one."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kinds: dict[PurePosixPath, _Kind] = {PurePosixPath("."): "folder"}
        self._links: list[tuple[PurePosixPath, str]] = []
        self._bytes = 0

    def run(self, data: bytes) -> None:
        try:
            with (
                _BoundedGzip(fileobj=io.BytesIO(data)) as unzipped,
                tarfile.open(fileobj=unzipped, mode="r:", errorlevel=2) as archive,
            ):
                count = 0
                for count, member in enumerate(archive, start=1):
                    if count > MEMBERS_MAX:
                        raise SpecError("workdir", "archive", f"has more than {MEMBERS_MAX} members")
                    self._admit(archive, member)
                unzipped.seek(0)
                if count == 0 and any(unzipped.read(tarfile.BLOCKSIZE)):
                    raise ValueError("its first header leads nowhere")  # Python 3.11.2 takes some of those for the end
        except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError, RecursionError) as error:
            raise SpecError("workdir", "archive", f"is damaged ({error}); pack the folder again") from error
        for name, target in self._links:
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)

    def _admit(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._bytes += member.size
        if member.size < 0 or self._bytes > UNPACKED_BYTES_MAX:
            raise SpecError("workdir", member.name, f"the archive unpacks to more than {show_size(UNPACKED_BYTES_MAX)}")
        if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse():
            self._write(archive, member, self._claim(member.name, "file"))
        elif member.type == tarfile.DIRTYPE:
            (self._root / self._claim(member.name, "folder")).mkdir(parents=True, exist_ok=True)
        elif member.type == tarfile.SYMTYPE:
            if problem := _link_problem(member.name, member.linkname):
                raise SpecError("workdir", member.name, f"is a link that {problem}")
            self._links.append((self._claim(member.name, "link"), member.linkname))
        else:
            raise SpecError("workdir", member.name, "is not a plain file, folder or link; pack the folder with phalanx")

    def _claim(self, name: str, kind: _Kind) -> PurePosixPath:
        """The member's path, once it is known to stay inside and to clash with no other member."""
        path = PurePosixPath(name)
        if not name or "\0" in name or name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
            raise SpecError("workdir", name, "is not a plain relative name; pack the folder with phalanx")
        for folder in path.parents:
            if self._kinds.setdefault(folder, "folder") != "folder":
                raise SpecError("workdir", name, f"lies below {str(folder)!r}, which the archive says is no folder")
        if path in self._kinds and not self._kinds[path] == kind == "folder":
            raise SpecError("workdir", name, "stands twice in the archive")
        self._kinds[path] = kind
        if len(self._kinds) > 2 * MEMBERS_MAX:  # a member may name any number of folders on its way
            raise SpecError("workdir", "archive", f"has more than {2 * MEMBERS_MAX} members and folders")
        return path

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: PurePosixPath) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        if content is None:
            raise SpecError("workdir", member.name, "has no content; pack the folder again")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o755 if member.mode & 0o100 else 0o644)
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(content, file)
        if path.stat().st_size != member.size:
            raise SpecError("workdir", member.name, "ends early; pack the folder again")
