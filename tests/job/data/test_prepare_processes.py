"""Work over processes: the same bytes whatever their number, one error for a killed one, none left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from phalanx.core.errors import DataError, SetupError
from phalanx.job.data import file_pieces
from phalanx.job.data.crew import Crew, default_processes
from phalanx.job.data.manifest import MANIFEST
from phalanx.job.data.prepare import PrepareProgress, prepare
from tests.job.data.prepare_cases import contents, write_jsonl


def workers(of: int | None = None) -> list[psutil.Process]:
    """What a crew started."""
    found = []
    for one in psutil.Process(of).children():
        with contextlib.suppress(psutil.Error):  # it is ending just now
            if any("crew_member" in word for word in one.cmdline()):
                found.append(one)
    return found


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More tasks than are in flight at a time. The process that hands them out decides their size."""
    monkeypatch.setattr(file_pieces, "PIECE_BYTES", 150_000)
    monkeypatch.setattr(file_pieces, "TASK_PIECES", 1)


def test_one_two_and_three_processes_give_the_same_bytes(texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", ({"text": f"row {row} 🐍 " * (row % 90)} for row in range(4000)))
    for number in (1, 2, 3):
        prepare([texts, rows], tmp_path / str(number), tokenizer=tokenizer, shard_tokens_max=300_000, processes=number)
    one, two, three = (contents(tmp_path / str(number)) for number in (1, 2, 3))
    assert len([name for name in one if name.endswith(".bin")]) > 4
    assert one == two == three
    assert not workers()


def test_a_tokenizer_is_trained_alike_by_any_number_of_processes(texts: Path, tmp_path: Path) -> None:
    made = [
        prepare([texts], tmp_path / str(number), vocab_size=300, training_text_bytes_max=200_000, processes=number)
        for number in (1, 2)
    ]  # fmt: skip
    assert made[0] == made[1]
    assert contents(tmp_path / "1")[MANIFEST] == contents(tmp_path / "2")[MANIFEST]


@pytest.mark.parametrize("phase", ["reading", "encoding"])
def test_a_killed_process_is_one_clear_error_and_leaves_nothing(texts: Path, tokenizer: Path, tmp_path: Path, phase: str) -> None:
    def kill(progress: PrepareProgress) -> None:
        if progress.phase.startswith(phase):
            for one in workers():
                one.kill()

    with pytest.raises(SetupError, match="one of the processes was killed") as caught:
        prepare([texts], tmp_path / "out", tokenizer=tokenizer, processes=2, progress=kill)
    assert (caught.value.field, caught.value.value) == ("processes", 2)
    assert list(tmp_path.iterdir()) == []
    assert not workers()


HOLD = """
import sys
from pathlib import Path
from phalanx.job.data.prepare import prepare
def hold(progress):
    print("holds", flush=True)
    sys.stdin.read()
prepare([sys.argv[1]], Path(sys.argv[2]), tokenizer=Path(sys.argv[3]), progress=hold, processes=2)
"""


def test_processes_end_with_the_one_that_started_them(texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(texts), str(tmp_path / "out"), str(tokenizer)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        left = workers(process.pid)
        assert len(left) == 1, "and the one that was killed"
        process.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(left, timeout=60)
    assert not alive


def test_an_error_in_a_process_arrives_whole(texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    victim = sorted(texts.iterdir())[-1]
    original = victim.read_bytes()

    def change(progress: PrepareProgress) -> None:
        if progress.phase == "reading" and progress.done_bytes == progress.total_bytes:
            victim.write_bytes(original.upper())

    try:
        with pytest.raises(DataError, match="changed while it was being prepared") as caught:
            prepare([texts], tmp_path / "out", tokenizer=tokenizer, processes=2, progress=change)
        assert caught.value.value == str(victim)
        assert list(tmp_path.iterdir()) == []
    finally:
        victim.write_bytes(original)


def double(number: int) -> int:
    time.sleep(0.002 if number % 7 else 0.01)  # so that some are done before earlier ones
    return 2 * number


def test_results_come_in_order_and_few_are_in_flight() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for number in range(100):
            taken = number + 1
            yield number

    with Crew(2) as crew:
        for number, result in enumerate(crew.map(double, tasks())):
            assert result == 2 * number
            assert taken - number <= 9
    with Crew(1) as crew:
        assert list(crew.map(double, range(5))) == [0, 2, 4, 6, 8]


class OddError(Exception):
    """One that pickle cannot make again, as libraries have them."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{words} ({code})")


def fail(number: int) -> int:
    raise OddError(number, "no such tensor")


def test_any_error_of_another_process_is_told_and_ends_the_wait() -> None:
    with pytest.raises(RuntimeError, match=r"OddError: no such tensor \(3\)"), Crew(2) as crew:
        list(crew.map(fail, [3, 3]))


def test_a_number_of_processes_that_makes_no_sense_is_refused(texts: Path, tmp_path: Path) -> None:
    for number in (0, -1, 5000):
        with pytest.raises(DataError, match="from 1 to 1024"):
            prepare([texts], tmp_path / "out", processes=number)
    assert default_processes(10) == 1
    assert default_processes(10**12) == len(os.sched_getaffinity(0))
