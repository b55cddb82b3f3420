"""What people see of checkpoints, and where those of a job lie."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.checkpoints import StoredCheckpoint
from phalanx.core.errors import NotFound
from phalanx.core.units import show_size
from phalanx.core.views import JobView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line


def place_of(place: str, home: Path | None) -> str:
    """A folder that is there is itself, what has a '/' is meant as one, or is a URL; any other word is a job. Raises NotFound."""
    if "://" in place:
        return place
    if "/" in place or Path(place).is_dir():
        return str(Path(place).expanduser())
    from phalanx.client import connect

    with connect(home) as client:
        return _place_of_job(client.job(place))


def _place_of_job(job: JobView) -> str:
    """Also of a job that died before anybody heard of a checkpoint. A server of an older version knows only what it heard of."""
    heard = [one.path.rpartition("/")[0] for one in job.checkpoints]
    place = job.checkpoints_at or (heard[-1] if heard else "")
    if "://" in place or (place and Path(place).is_dir()):
        return place
    if not heard:
        raise NotFound("job", job.id, "has committed no checkpoint")
    raise NotFound("folder", place, f"is where {job.id} saved, and is not on this machine; run this where it is")


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
