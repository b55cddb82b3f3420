"""What people see of checkpoints on a disk, and where those of a job lie."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.checkpoints import StoredCheckpoint
from phalanx.core.errors import NotFound
from phalanx.core.units import show_size
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line


def folder_of(place: str, home: Path | None) -> Path:
    """A folder that is there is itself, what has a '/' is meant as one; any other word is a job. Raises NotFound."""
    if "/" in place or Path(place).is_dir():
        return Path(place).expanduser()
    from phalanx.client import connect

    with connect(home) as client:
        job = client.job(place)
    if not job.checkpoints:
        raise NotFound("job", place, "has committed no checkpoint")
    folder = Path(job.checkpoints[-1].path).parent
    if not folder.is_dir():
        raise NotFound("folder", str(folder), f"is where {place} saved, and is not on this machine; run this where it is")
    return folder


def damaged(found: Sequence[StoredCheckpoint]) -> bool:
    return any(one.committed and one.problem for one in found)


def checkpoints_page(found: Sequence[StoredCheckpoint]) -> Iterator[RenderableType]:
    rows = [
        (
            one.name, one.attempt or "-", one.ranks or "-", one.tensors or "-", show_size(one.size_bytes) if one.ranks else "-",
            ", ".join(f"{name} {value:.6g}" for name, value in one.metrics.items()) or "-", _state(one),
        )
        for one in found
    ]  # fmt: skip
    head = ("CHECKPOINT", "ATTEMPT", "RANKS", "TENSORS", "SIZE", "METRICS", "STATE")
    yield Grid(head, rows, right=("RANKS", "TENSORS", "SIZE"), drop=("TENSORS", "METRICS", "ATTEMPT"))
    for one in found:
        if one.problem:
            yield line(f"{one.name}/{one.problem}", style="red" if damaged([one]) else "dim")


def _state(one: StoredCheckpoint) -> Text:
    if one.problem:
        return Text("damaged", style="red") if damaged([one]) else Text("not committed", style="dim")
    return Text("verified" if one.verified else "whole", style="green")
