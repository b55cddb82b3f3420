"""The journal: byte ranges of append-only files, durable, at their offset, whatever order and how often they come."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import StoreUnavailable, UserError
from phalanx.core.ids import AttemptId
from phalanx.record.telemetry.journal import Journal
from tests.drawn import examples

ATTEMPT = AttemptId("tiny-lm-7.2")


def test_chunks_in_order_are_the_file(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.write("log", ATTEMPT, 0, 0, b"hello ") == 6
    assert journal.write("log", ATTEMPT, 0, 6, b"world") == 11
    assert journal.read("log", ATTEMPT, 0, 3, 5) == b"lo wo"
    assert journal.size("log", ATTEMPT, 0) == 11
    assert journal.read("log", ATTEMPT, 0, 50, 5) == b""
    assert journal.read("log", ATTEMPT, 1, 0, 5) == b""


def test_a_repeat_changes_nothing_and_an_overlap_adds_only_what_is_new(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("records", ATTEMPT, 3, 0, b"abcdef")
    assert journal.write("records", ATTEMPT, 3, 0, b"abcdef") == 6
    assert journal.write("records", ATTEMPT, 3, 2, b"cd") == 6
    assert journal.write("records", ATTEMPT, 3, 4, b"XXgh") == 8
    assert journal.read("records", ATTEMPT, 3, 0, 100) == b"abcdefgh"


def test_a_gap_is_not_written_and_answers_the_present_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.write("log", ATTEMPT, 0, 5, b"later") == 0
    journal.write("log", ATTEMPT, 0, 0, b"now")
    assert journal.write("log", ATTEMPT, 0, 4, b"later") == 3
    assert journal.read("log", ATTEMPT, 0, 0, 100) == b"now"


def test_ends_are_the_files_sizes_also_after_a_restart(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("log", ATTEMPT, 0, 0, b"12345")
    journal.write("records", ATTEMPT, 11, 0, b"123")
    journal.write("log", AttemptId("other-8.1"), 0, 0, b"1")
    both = [ATTEMPT, AttemptId("other-8.1")]
    expected = {"log/tiny-lm-7.2/0": 5, "records/tiny-lm-7.2/11": 3, "log/other-8.1/0": 1}
    assert journal.ends(both) == Journal(tmp_path).ends(both) == expected
    assert Journal(tmp_path).ends([ATTEMPT, AttemptId("never-9.1")]) == {key: end for key, end in expected.items() if "tiny" in key}
    assert journal.ranks("log", ATTEMPT) == (0,)
    assert Journal(tmp_path / "none").ends(both) == {}


@pytest.mark.parametrize(
    "attempt", ["../x-1.1", "a/b-1.1", "", ".", "tiny-lm-7", "tiny-lm-7.2\n", "/etc-1.1", "tiny-lm-7.2/../../x"]
)
def test_only_attempt_ids_become_paths(tmp_path: Path, attempt: str) -> None:
    with pytest.raises(UserError, match="attempt"):
        Journal(tmp_path / "journal").write("log", AttemptId(attempt), 0, 0, b"x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rank", "offset"), [(-1, 0), (10**9, 0), (0, -1)])
def test_absurd_numbers_are_refused(tmp_path: Path, rank: int, offset: int) -> None:
    with pytest.raises(UserError):
        Journal(tmp_path).write("log", ATTEMPT, rank, offset, b"x")


def test_an_unknown_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="stream"):
        Journal(tmp_path).write("../log", ATTEMPT, 0, 0, b"x")  # type: ignore[arg-type]  # what a hostile agent could send


def test_a_full_disk_is_the_worlds_and_leaves_no_hole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write("log", ATTEMPT, 0, 0, b"a" * 1000)
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, before[1]))
    try:
        with pytest.raises(StoreUnavailable):
            journal.write("log", ATTEMPT, 0, 1000, b"b" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert journal.read("log", ATTEMPT, 0, 0, 5000) == b"a" * 1000
    assert journal.write("log", ATTEMPT, 0, 1000, b"b" * 1000) == 2000


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from phalanx.record.telemetry.journal import Journal
journal, end = Journal(Path(sys.argv[1])), 0
while True:
    end = journal.write("log", "tiny-lm-7.2", 0, end, b"0123456789")
    print(end, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    acked = [int(process.stdout.readline()) for _ in range(20)][-1]
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    journal = Journal(tmp_path)
    end = journal.ends([ATTEMPT])["log/tiny-lm-7.2/0"]
    assert end >= acked
    assert journal.read("log", ATTEMPT, 0, 0, end) == (b"0123456789" * (end // 10 + 1))[:end]


@settings(max_examples=examples(60), deadline=None)
@given(st.binary(max_size=60), st.lists(st.tuples(st.integers(0, 70), st.integers(0, 40)), max_size=30))
def test_any_chunks_of_a_file_give_a_prefix_of_it(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[tuple[int, int]]
) -> None:
    journal = Journal(tmp_path_factory.mktemp("journal"))
    for offset, size in cuts:
        end = journal.write("log", ATTEMPT, 0, offset, content[offset : offset + size])
        assert end == journal.size("log", ATTEMPT, 0)
        assert journal.read("log", ATTEMPT, 0, 0, 1000) == content[:end]
