"""The error of a rank that fell, in one line of its log."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from phalanx.core.errors import SetupError
from phalanx.core.ids import AttemptId
from phalanx.core.messages import AttemptReport, RankExit
from phalanx.core.spec import JobSpec
from phalanx.operate.control.last_words import REASON_CHARS_MAX, SAID_CHARS_MAX, TAIL_BYTES, LastWords, error_line
from phalanx.record.telemetry.journal import Journal

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 9, in <module>
    main()
    ~~~~^^
  File "train.py", line 5, in main
    raise ValueError("no such shard: 7")
"""
CHAINED = (
    f"{TRACEBACK}ValueError: no such shard: 7\n\nDuring handling of the above exception, another exception occurred:\n\n"
    'Traceback (most recent call last):\n  File "a.py", line 1, in f\nlib.errors.ReadError: gave up\nafter 3 tries\n'
)
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1
  | ExceptionGroup: unhandled errors (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 2
    | KeyError: 'x'
    +------------------------------------
"""
NOISE = "".join(f"[W1129 {number} ProcessGroup.cpp] destroy_process_group() was not called\n" for number in range(9))
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory"
OF_A_RANK = "".join(f"[rank1]: {line}\n" for line in [*TRACEBACK.splitlines(), OUT_OF_MEMORY])
FATAL = "Fatal Python error: Segmentation fault"
THROWN = "terminate called after throwing an instance of 'c10::Error'"
MISTYPED = "cannot start 'pyhton': No such file or directory"

TOLD = [
    ("", 1, ""),
    (f"loading\n{TRACEBACK}ValueError: no such shard: 7\n", 1, "ValueError: no such shard: 7"),
    (f"{TRACEBACK}ValueError: no such shard: 7\n{NOISE}", 1, "ValueError: no such shard: 7"),
    (f"{TRACEBACK}KeyError\n", 1, "KeyError"),
    (CHAINED, 1, "lib.errors.ReadError: gave up"),
    (GROUP, 1, "KeyError: 'x'"),
    (OF_A_RANK, 1, OUT_OF_MEMORY),
    ("2026-11-29 INFO started\nError: data.path is '/x': is not there\n", 2, "data.path is '/x': is not there"),
    (f"phalanx: building\nphalanx: {MISTYPED}\n", 127, MISTYPED),
    ("phalanx: building\nreading\nbash: line 1: train: command not found\n", 127, "bash: line 1: train: command not found"),
    ("Error: try again\n" + "step\n" * 100 + "no more shards\n", 3, "no more shards"),
    ("step 7\n", -9, ""),
    (f"{TRACEBACK}ValueError: x\n", -15, ""),
    ("step 7\n", -11, ""),
    (f'step 7\n{FATAL}\n\nCurrent thread:\n  File "a.py", line 1\n', -11, FATAL),
    (f"step 7\n{THROWN}\n", -6, THROWN),
    ("\x1b[31mred  words\x1b[0m\ton\n-----\n\n", 1, "red words on"),
    ("boom\n\nphalanx: this log is cut here: it went on after 9 bytes\n", 1, "boom"),
    ("x" * 1000, 1, "x" * (SAID_CHARS_MAX - 3) + "..."),
]


@pytest.mark.parametrize(("log", "code", "said"), TOLD, ids=range(len(TOLD)))
def test_the_line_that_tells_the_error_is_found(log: str, code: int, said: str) -> None:
    assert error_line(log, code) == said


ATTEMPT = AttemptId("lm-1.1")
FELL, ENDED = RankExit(1, 2, 50, first=True), RankExit(0, -15, 60)
REPORT = AttemptReport(ATTEMPT, 1, "ended", (), (ENDED, FELL), 70)


class Desk:
    """Logs in a journal, and an attempt of two ranks that the world knows."""

    def __init__(self, root: Path, secrets: Sequence[str] = (), ended_ms: int | None = None) -> None:
        self.journal = Journal(root)
        attempt = SimpleNamespace(job="lm-1", ended_ms=ended_ms, placement=SimpleNamespace(world_size=2))
        job = SimpleNamespace(spec=SimpleNamespace(secrets=secrets, all_secrets=secrets))
        self.world = SimpleNamespace(attempts={ATTEMPT: attempt}, jobs={"lm-1": job})
        self.words = LastWords(lambda: cast(Any, self.world), self.journal, self.values)

    def values(self, spec: JobSpec) -> Sequence[str]:
        if "LOST" in spec.secrets:
            raise SetupError("secret key", "secret.key", "is missing")
        return ["tiger-canary"]

    def writes(self, rank: int, text: str) -> None:
        self.journal.write("log", ATTEMPT, rank, self.journal.size("log", ATTEMPT, rank), text.encode())

    def said(self, report: AttemptReport = REPORT) -> list[str]:
        return [one.said for one in self.words.told(report).exits]


def test_only_the_rank_that_fell_first_is_asked_for_its_words_and_only_at_the_end(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.writes(0, "Error: somebody stopped me\n")
    desk.writes(1, "Error: no data\n")
    assert desk.said() == ["", "no data"]
    assert desk.said(replace(REPORT, phase="stopping")) == ["", ""]
    many = [replace(FELL, rank=rank, at_ms=50 - rank) for rank in range(1, 9)]
    assert desk.said(replace(REPORT, exits=tuple(many))) == [""] * 8, "four at most, the first ones"
    assert desk.said(replace(REPORT, exits=(ENDED, replace(FELL, first=False)))) == ["", ""]


def test_what_an_agent_says_of_words_is_not_believed(tmp_path: Path) -> None:
    told = replace(REPORT, exits=(replace(ENDED, said="tiger-canary"), replace(FELL, said="tiger-canary")))
    assert Desk(tmp_path).said(told) == ["", ""]


def test_an_agents_own_words_are_no_way_to_fill_the_log(tmp_path: Path) -> None:
    """They are kept with the job and shown with it; one message has room for two megabytes of them."""
    told = Desk(tmp_path).words.told(replace(REPORT, lost="x" * 2**20, refused="y" * 2**20))
    assert (len(told.lost), len(told.refused)) == (REASON_CHARS_MAX, REASON_CHARS_MAX)
    honest = replace(REPORT, lost="it came back without them", refused="environment.lock: no such package")
    assert (Desk(tmp_path).words.told(honest).lost, Desk(tmp_path).words.told(honest).refused) == (honest.lost, honest.refused)


def test_no_secret_is_told_also_where_only_its_end_is_read(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "a", ["KEY"])
    desk.writes(1, "Error: cannot log in with tiger-canary here\n")
    assert desk.said() == ["", "cannot log in with *** here"]
    for cut in range(1, 12):
        desk = Desk(tmp_path / str(cut), ["KEY"])
        desk.writes(1, "z" * 50 + "tiger-canary" + "y" * (TAIL_BYTES - cut))
        assert set(desk.said()[1]) <= set("y*.")
    desk = Desk(tmp_path / "lost", ["LOST"])
    desk.writes(1, "Error: cannot log in with tiger-canary here\n")
    assert desk.said() == ["", ""]


def test_a_long_log_is_read_from_its_end_and_from_a_whole_line(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.writes(1, "step\n" * TAIL_BYTES + f"{TRACEBACK}ValueError: late\n")
    assert desk.said() == ["", "ValueError: late"]
    desk = Desk(tmp_path / "cut")
    rest = "Error: no line\n"
    desk.writes(1, f"{'z' * 50}{rest}{'y' * (TAIL_BYTES - len(rest) - 5)}\nlast")
    assert desk.said() == ["", "last"]


def test_a_log_that_cannot_be_read_costs_the_words_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reports it could never come back else."""
    desk = Desk(tmp_path)

    def size(*_: object) -> int:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(desk.journal, "size", size)
    assert desk.said() == ["", ""]


def test_of_an_attempt_that_is_over_or_unknown_nothing_is_read(tmp_path: Path) -> None:
    desk = Desk(tmp_path, ended_ms=5)
    desk.writes(1, "Error: no data\n")
    assert desk.said() == ["", ""]
    assert desk.said(replace(REPORT, attempt=AttemptId("other-2.1"))) == ["", ""]
    assert Desk(tmp_path).said(replace(REPORT, exits=(RankExit(9, 2, 1, first=True),))) == [""]
