"""Where a rank's moments go, and whether there is room for those of all ranks. Every rank hears of an error that one has."""

import os
import platform
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

from phalanx.core.errors import SetupError
from phalanx.core.recipe import AnyRecipe, LlamaRecipe
from phalanx.job.checkpoint.host_memory import free_bytes
from phalanx.job.checkpoint.keeper.segments import SPARE_BYTES
from phalanx.job.checkpoint.nameless import free_on_disk, nameless
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.sdk.session import Session

T = TypeVar("T")
_KIND: Final = "hyperparameters.offload"
DIR: Final = "hyperparameters.offload_dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadPlace:
    """folder: of the file, for `nvme`. node: by which ranks of one machine know each other."""

    kind: Literal["cpu", "nvme"]
    folder: Path = Path()
    node: str = ""


def offload_place(session: Session, recipe: AnyRecipe) -> OffloadPlace | None:
    """None where moments stay beside the weights. A file lies in the attempt's folder on the node where the recipe does not say."""
    if not isinstance(recipe, LlamaRecipe) or recipe.offload == "none":
        return None
    own = Path(session.keepers_dir).parent if session.keepers_dir else Path(tempfile.gettempdir())
    folder = Path(recipe.offload_dir) if recipe.offload_dir else own
    return OffloadPlace(kind=recipe.offload, folder=folder, node=session.node or platform.node())


def scratch_of(session: Session, recipe: AnyRecipe) -> str:
    """Where snapshots for saves lie too: memory that has no room for moments has none for two copies of them. '' for in memory."""
    place = offload_place(session, recipe)
    return str(place.folder) if place is not None and place.kind == "nvme" else ""


def check_room(place: OffloadPlace, needed: int, host_free: Callable[[], int] = free_bytes) -> None:
    """A collective of all ranks. needed: bytes of this rank. Raises SetupError, on every rank, where those of one node have too
    little together, or one has no such folder."""
    where, free = agreed(place, lambda: _room(place, host_free))
    told = told_by_all((where, needed, free))
    together: Counter[str] = Counter()
    for one, size, _ in told:
        together[one] += size
    for one, _, there in told:
        if together[one] > there:
            raise _too_little(place, together[one], there)


def agreed(place: OffloadPlace, make: Callable[[], T], undo: Callable[[T], None] = lambda made: None) -> T:
    """What `make` gives. A collective of all ranks: the first SetupError of one is raised on every rank, and so is what the system
    or the device refuses. undo: of what a rank has made while another could not."""
    made: list[T] = []
    error: SetupError | None = None
    try:
        made.append(make())
    except SetupError as refused:
        error = refused
    except (OSError, MemoryError, RuntimeError) as failed:  # a device's refusal is a RuntimeError
        error = SetupError(_KIND, place.kind, f"the place of the optimiser's state cannot be made ({failed}); write offload: none")
    first = next((told for told in told_by_all(error) if told is not None), None)
    if first is None:
        return made[0]
    for one in made:
        undo(one)
    raise first


def _room(place: OffloadPlace, host_free: Callable[[], int]) -> tuple[str, int]:
    """What ranks share, by a name among all, and how many bytes of it are free."""
    if place.kind == "cpu":
        return place.node, max(host_free() - SPARE_BYTES, 0)
    descriptor = new_file(place.folder)
    device = os.fstat(descriptor).st_dev
    os.close(descriptor)
    return f"{place.node}:{device}", free_on_disk(place.folder)


def new_file(folder: Path) -> int:
    """Without a name, open to read and write. Raises SetupError."""
    try:
        return nameless(folder)
    except OSError as error:
        raise _no_folder(folder, error) from error


def _no_folder(folder: Path, error: OSError) -> SetupError:
    fix = (
        f"a file for the optimiser's state cannot be made there ({error.strerror}); give a folder of this node that can be written"
    )
    return SetupError(DIR, str(folder), fix)


def _too_little(place: OffloadPlace, needed: int, there: int) -> SetupError:
    of = f"the optimiser's state of this node's ranks needs {needed} bytes"
    if place.kind == "cpu":
        fix = f"{of} of host memory, and {there} are free; give the job more memory or more ranks, or write offload: nvme"
        return SetupError(_KIND, place.kind, fix)
    return SetupError(DIR, str(place.folder), f"{of} there, and {there} are free; make room, or give a folder of a larger disk")
