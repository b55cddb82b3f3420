"""One gang's checkpoint is another's: more ranks, fewer, one, and cut in two directions. The gangs run layout_cases.py."""

from pathlib import Path

import pytest

from phalanx.job.checkpoint.whole import verify
from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang

LAUNCHES = {
    2: ("save:two:dp", "load:two:dp"),
    4: (
        "load:two:dp",
        "load:two:dp-tp",
        "keep:kept:dp",
        "keep:kept-grid:dp-tp",
        "save:four:dp",
        "save:grid:dp-tp",
        "load:four:dp-tp",
        "load:grid:dp-tp",
    ),
    1: ("load:two:dp", "load:four:dp", "load:grid:dp"),
}
AGAIN = ("load:four:dp", "load:grid:dp", "load:grid:dp-tp", "dcp:grid:dp")


def launch(folder: Path, number: int, ranks: int, actions: tuple[str, ...]) -> None:
    own = folder / f"launch-{number}"
    started = start_gang(["-m", "tests.job.checkpoint.layout_cases", str(folder), *actions], own, ranks, {})
    assert end_gang(started) == [0] * ranks, logs(own)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 -> 4, 2 -> 2 x 2, then 4 and 2 x 2 -> 2 and 1, in which every comparison is made by the gangs themselves."""
    folder = tmp_path_factory.mktemp("layouts")
    for number, (ranks, actions) in enumerate(LAUNCHES.items()):
        launch(folder, number, ranks, actions)
    launch(folder, len(LAUNCHES), 2, AGAIN)
    return folder


def test_T02_values_are_equal_on_every_other_layout_with_a_vocabulary_no_gang_divides(folder: Path) -> None:
    assert sorted(path.name for path in folder.glob("*.full")) == ["four.full", "grid.full", "two.full"]


def test_snapshots_of_all_ranks_are_every_whole_tensor_and_leave_nothing(folder: Path) -> None:
    """The gangs of four compare; here that they did, and that their keepers are gone with all that they held."""
    assert [(folder / name).exists() and not (folder / name / "keepers").exists() for name in ("kept", "kept-grid")] == [True] * 2


@pytest.mark.parametrize("name", ["two", "four", "grid"])
def test_every_element_is_written_once(folder: Path, name: str) -> None:
    checkpoint = verify(folder / name / "step-00000003")
    written = [(entry.name, entry.start) for shard in checkpoint.shards for entry in shard.parts]
    assert len(written) == len(set(written))


def test_what_is_cut_along_one_axis_only_is_shared_out_along_the_other(folder: Path) -> None:
    """The norms and the attention of dp x tp lie on dp alone; their writers are spread over tp."""
    checkpoint = verify(folder / "grid" / "step-00000003")
    bytes_of = [sum(entry.length for entry in shard.parts if not entry.name.startswith("rng.")) for shard in checkpoint.shards]
    assert max(bytes_of) < 1.2 * min(bytes_of), bytes_of
