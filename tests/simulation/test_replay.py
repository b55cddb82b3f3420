"""A seed is one history: the same in every process, or it could be neither traced nor pinned."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (3, 69, 87)
"""In the last two a node once said Hello after two of its gangs had ended, and Python's hashing chose which ended first."""


def simulation(*words: str, hash_seed: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words], cwd=ROOT, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_is_the_same_history_in_every_process(seed: int) -> None:
    told = [simulation("--trace", str(seed), hash_seed=hash_seed) for hash_seed in (1, 2)]
    assert told[0].returncode == 0, told[0].stderr
    assert told[0].stdout == told[1].stdout
    assert len(told[0].stdout.splitlines()) > 20


def test_the_last_line_says_what_came_of_it() -> None:
    green = simulation("--seeds", "0:12", "-o", "json")
    assert (green.returncode, green.stderr) == (0, "")
    assert json.loads(green.stdout) == {"seeds": 12, "failures": 0, "mutant": None, "first_red_seed": None}
    red = simulation("--seeds", "0:3", "--mutant", "ledger_leak", "-o", "json", "--stop-at-first")
    said = json.loads(red.stdout.splitlines()[-1])
    assert (red.returncode, said["mutant"], said["seeds"]) == (1, "ledger_leak", 3)
    assert said["failures"] > 0 <= said["first_red_seed"]
    assert "ledger_balances" in red.stderr


def test_words_that_say_nothing_are_refused() -> None:
    for words in (("--seeds", "5"), ("--seeds", "9:3"), ("--mutant", "none-such"), ("--trace", "x")):
        refused = simulation(*words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert words[1] in refused.stderr
