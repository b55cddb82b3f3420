"""Fetches an artifact's bytes: into a file that is whole, and what its hash says, or not there at all."""

import hashlib
import os
import secrets
from pathlib import Path

from phalanx.core.errors import Conflict, ServerUnreachable, SetupError
from phalanx.core.views import ArtifactView


def refuse_taken(out: Path, force: bool) -> None:
    """Raises Conflict where something is already and not `force`."""
    if not force and os.path.lexists(out):
        raise Conflict("--out", str(out), "is there already; name another place, or add --force")


def save(artifact: ArtifactView, data: bytes, out: Path, url: str) -> None:
    """Raises SetupError where `out` cannot be written, ServerUnreachable for bytes that are not those the name stands for."""
    if hashlib.sha256(data).hexdigest() != artifact.sha256:
        raise ServerUnreachable(f"{url} sent other bytes than those of {artifact.name}; try again")
    try:
        _write(out, data)
    except OSError as error:
        raise SetupError("--out", str(out), f"cannot be written ({error.strerror}); name another place") from error


def _write(out: Path, data: bytes) -> None:
    """Written beside, then renamed over the name."""
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.parent / f".artifact.{secrets.token_hex(8)}.tmp"
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(out)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
