"""A look into the packed workdir before it is sent. The client made it, so the archive is not hostile here."""

import io
import tarfile
import zlib

from phalanx.core.errors import SpecError
from phalanx.core.lock_file import checked_lock
from phalanx.core.spec import JobSpec


def check_lock(spec: JobSpec, packed: bytes | None) -> None:
    """Raises SpecError for a lock that the job would not find in its packed workdir, or could not be built from."""
    lock = spec.environment.lock
    if not lock:
        return
    if packed is None:
        raise SpecError(
            "environment.lock", lock, "is a file of workdir, which was not packed; hand in the packed workdir with the spec"
        )
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            checked_lock(lock, lambda name: _content(archive, name), f"is not packed with workdir: {_WHY}")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise SpecError("workdir", "archive", f"is damaged ({error}); pack the folder again") from error


_WHY = "it is not there, or git or .phalanxignore leaves it out"


def _content(archive: tarfile.TarFile, name: str) -> bytes | None:
    try:
        file = archive.extractfile(name)  # through a link, when it is one
    except KeyError:
        return None
    return file.read() if file else None
