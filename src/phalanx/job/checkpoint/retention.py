"""Which checkpoints stay. Called only after a newer one was committed and read back whole as the deciding rank sees the store."""

import contextlib
import shutil
from pathlib import Path

from phalanx.job.checkpoint import manifest


def discard(folder: Path) -> None:
    """Removes a checkpoint folder, its manifest first: a crash half-way leaves one that does not exist. Raises OSError."""
    (folder / manifest.MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder)


def keep_newest(root: Path, newest_step: int, keep_last: int) -> list[str]:
    """Removes checkpoints beyond the newest `keep_last`, and older folders that never were committed. The names removed.

    Folders after `newest_step` are left alone. What cannot be removed stays and costs only space.
    """
    upto = [(step, folder) for step, folder in manifest.step_folders(root) if step <= newest_step]
    kept = [folder for step, folder in manifest.committed(root) if step <= newest_step][: max(keep_last, 1)]
    removed = []
    for _, folder in upto:
        if folder not in kept:
            with contextlib.suppress(OSError):
                discard(folder)
                removed.append(folder.name)
    return removed
