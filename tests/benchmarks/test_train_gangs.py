"""Cases of the training benchmark follow each other in one gang: which comes next, and what a rank that dies or hangs costs."""

import importlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RANK = """
import os, sys, time
from pathlib import Path
from parts.train_gang import in_turn

def measured(case):
    if case.batch == 2:
        print("the last words", flush=True)
        os._exit(7)
    return {"failed": "too large"} if case.batch == 3 else {"batch": case.batch}

in_turn(Path(sys.argv[sys.argv.index("--as-rank") + 1]), lambda number: number, measured)
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


def test_a_gang_is_given_up_when_it_is_silent_for_long_or_its_time_is_over(tmp_path: Path) -> None:
    gang = part("train_gang")
    one = object.__new__(gang._Gang)
    one._asked, one.at = asked(("a", 100), hard_s=time.time() + 1e6), None
    assert one._too_long(119) == "" and "silent" in one._too_long(121)
    one.at = 0
    assert one._too_long(299) == "" and "silent" in one._too_long(301)
    one._asked = asked(("a", 100), hard_s=time.time() - 1)
    assert one._too_long(0) == "no time was left"
