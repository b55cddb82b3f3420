"""Cases of the training benchmark follow each other in one gang: which comes next, and what a rank that dies or hangs costs."""

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RANK = """
import os, sys, time
from itertools import count
from pathlib import Path
from parts.train_gang import in_turn

folder, numbers = Path(sys.argv[sys.argv.index("--as-rank") + 1]), count()

def agreed(number):
    told = folder / f"agreed-{os.environ['MASTER_PORT']}-{next(numbers)}"
    if os.environ["RANK"] == "0":
        told.with_suffix(".new").write_text(str(number))
        told.with_suffix(".new").rename(told)
    until_s = time.monotonic() + 120
    while not told.exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    return int(told.read_text())

def measured(case):
    if case.batch == 2:
        print("the last words", flush=True)
        os._exit(7)
    return {"failed": "too large"} if case.batch == 3 else {"batch": case.batch}

in_turn(folder, agreed, measured)
"""


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def part(name: str) -> Any:
    return importlib.import_module(f"parts.{name}")


def asked(*entries: tuple[str, float], soft_s: float = 1e12, hard_s: float = 1e12) -> Any:
    case = part("train_case")
    size = part("train_claims").DENSE_1B
    return case.Asked(
        entries=tuple(
            case.Entry(claim=claim, case=case.Case(size=size, batch=index + 1), expected_s=seconds)
            for index, (claim, seconds) in enumerate(entries)
        ),
        soft_s=soft_s, hard_s=hard_s,
    )  # fmt: skip


def order(what: Any, now_s: float, bad: tuple[int, ...] = ()) -> list[int]:
    found = []
    while (index := what.next(now_s)) is not None:
        found.append(index)
        what = what.after(index, index not in bad)
    return found


def test_each_claim_gets_its_first_case_before_any_gets_a_second() -> None:
    what = asked(("a", 1), ("a", 1), ("b", 1), ("b", 1), ("c", 1))
    assert order(what, 0) == [0, 2, 4, 1, 3]


def test_what_fails_is_followed_by_the_next_case_of_its_claim() -> None:
    what = asked(("a", 1), ("a", 1), ("b", 1), ("b", 1))
    assert order(what, 0, bad=(0, 2)) == [0, 1, 2, 3]


def test_further_cases_end_sooner_than_first_ones_and_what_takes_too_long_is_passed_over() -> None:
    what = asked(("a", 10), ("a", 10), ("b", 10), ("b", 2), soft_s=105, hard_s=120)
    assert order(what, 100) == [0, 2, 3]
    assert order(what, 112) == [3]
    assert order(what, 119) == []
    assert what.next(100, slower=1.5) == 0 and what.next(100, slower=2.5) == 3


def test_what_is_asked_goes_through_a_file() -> None:
    case = part("train_case")
    what = asked(("a", 1), ("b", 2)).after(1, False)
    assert case.heard(case.told(what)) == what


def test_a_rank_that_dies_costs_its_case_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PYTHONPATH", f"{BENCHMARKS}:{BENCHMARKS.parent / 'src'}")
    told: list[int] = []
    what = asked(("a", 1), ("b", 1), ("c", 1), ("d", 1))
    answers = part("train_gang").run_gang("ours", what, 2, tmp_path, tmp_path / "compiled", lambda index, _: told.append(index))
    assert told == [0, 1, 2, 3]
    assert (answers[0]["batch"], answers[3]["batch"]) == (1, 4)
    assert answers[2]["failed"] == "too large"
    assert "ended with" in answers[1]["failed"] and answers[1]["failed"].endswith("the last words")


def test_a_rank_ends_with_the_call_that_started_it(tmp_path: Path) -> None:
    """Which a lent machine kills when its time is over."""
    rank = "import time\nfrom parts.train_gang import end_with_parent\nend_with_parent()\nprint(flush=True)\ntime.sleep(900)"
    call = (
        "import subprocess, sys, time\n"
        "rank = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)\n"
        "rank.stdout.readline()\nprint(rank.pid, flush=True)\ntime.sleep(900)"
    )
    env = {**os.environ, "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent / 'src'}"}
    with subprocess.Popen([sys.executable, "-c", call, rank], env=env, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        number = int(started.stdout.readline())
        assert Path(f"/proc/{number}").exists()
        started.kill()
    until_s = time.monotonic() + 120
    while alive(number) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert not alive(number)


def test_a_rank_whose_call_was_over_before_it_began_ends() -> None:
    gang = part("train_gang")
    code = "from parts.train_gang import end_with_parent\nend_with_parent()\nprint('began')"
    env = {**os.environ, "PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent / 'src'}"}
    for starter, said in ((os.getpid(), "began\n"), (1, "")):
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env={**env, gang.STARTED_BY: str(starter)}, capture_output=True, text=True, check=False)
        assert done.stdout == said, done.stderr


def alive(number: int) -> bool:
    """Not as a process that nobody has asked about yet."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_gang_is_given_up_when_it_is_silent_for_long_or_its_time_is_over(tmp_path: Path) -> None:
    gang = part("train_gang")
    one = object.__new__(gang._Gang)
    one._asked, one.at = asked(("a", 100), hard_s=time.time() + 1e6), None
    assert one._too_long(119) == "" and "silent" in one._too_long(121)
    one.at = 0
    assert one._too_long(299) == "" and "silent" in one._too_long(301)
    one._asked = asked(("a", 100), hard_s=time.time() - 1)
    assert one._too_long(0) == "no time was left"
