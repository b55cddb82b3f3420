"""What waits to be written while a disk does not answer: which processes ranks had, and lines that may be many."""

import json
import os
import selectors
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.operate.agent import shim
from phalanx.operate.agent.writing import LINES_MAX, Writer, Writing
from tests.operate.agent.agent_cell import until


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    with selectors.DefaultSelector() as made:
        yield made


def test_a_newer_state_is_written_where_the_older_one_was_to_be(tmp_path: Path, selector: selectors.BaseSelector) -> None:
    """Behind all else it would be put off again and again, and a job that runs would not count as running."""
    announced: list[str] = []
    writing = Writing(tmp_path, selector, announced.append)
    writing.first("ranks.json", [1], "ranks")
    writing.fact("exit.json", 0, "exit")
    writing.newest("ranks.json", [2], "ranks")
    writing.turn()
    assert announced == ["ranks", "exit"]
    assert json.loads((tmp_path / "ranks.json").read_bytes()) == [2]


def test_every_rank_that_had_a_process_is_told_of_however_late_the_disk_takes_it(tmp_path: Path) -> None:
    """A newer list takes the place of one that was never written: it must not lack the ranks that have ended since."""
    made = shim.Shim(tmp_path, {"ranks": []})
    made.alive = {11: 0, 12: 1}
    made.note_ranks()
    made.alive = {13: 1}  # rank 0 has ended, and rank 1 has another process
    made.note_ranks()
    made.writing.turn()
    made.selector.close()
    assert json.loads((tmp_path / "ranks.json").read_bytes()) == [{"rank": 0, "pid": 11}, {"rank": 1, "pid": 13}]


def test_lines_wait_for_a_disk_that_hangs_but_not_without_end(
    tmp_path: Path, selector: selectors.BaseSelector, capfd: pytest.CaptureFixture[str]
) -> None:
    stuck, log = tmp_path / "stuck", tmp_path / "log"
    os.mkfifo(stuck)
    log.touch()
    announced: list[str] = []
    writing = Writing(tmp_path, selector, announced.append, Writer())
    writing.line("is never read", str(stuck))
    writing.turn()
    writing.fact("fact.json", 1, "fact")
    for number in range(LINES_MAX + 100):
        writing.line(str(number), str(log))
    reader = os.open(stuck, os.O_RDONLY | os.O_NONBLOCK)
    until(lambda: turned(writing, selector))
    os.close(reader)
    writing.dismiss_writer()
    assert announced == ["fact"], "no fact is dropped"
    assert log.read_text().splitlines() == [str(number) for number in range(101, LINES_MAX + 100)]
    assert capfd.readouterr().err == "101 lines of logs are lost: the disk did not take them\n"


def turned(writing: Writing, selector: selectors.BaseSelector) -> bool:
    for key, _ in selector.select(0.05):
        key.data()
    writing.turn()
    return not writing.is_open
