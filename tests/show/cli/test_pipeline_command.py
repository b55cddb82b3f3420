"""`phalanx pipeline` as people type it."""

import json
from pathlib import Path

import pytest

from tests.show.cli.terminal import Terminal

SIZES = ("--ranks", "4", "--microbatches", "8")


def test_schedules_side_by_side_with_the_bubbles_of_their_formulas(terminal: Terminal) -> None:
    shown = terminal("pipeline", *SIZES)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines() == [
        "4 ranks, 8 microbatches",
        "SCHEDULE     STAGES A RANK  BUBBLE  FORMULA  OF ITS TIME  WITH A BARRIER  HELD  LAYERS OF STAGES",
        "gpipe                    1       9        9        27.3%           27.3%     8  -",
        "1f1b                     1       9        9        27.3%           27.3%     4  -",
        "bfs                      2     4.5      4.5        15.8%           15.8%     8  -",
        "interleaved              2     4.5      4.5        15.8%           15.8%   5.5  -",
        "zb1p                     1       3        3        11.1%           11.1%     4  -",
        "zbv                      2       0        0         0.0%            5.9%     4  -",
        "dualpipev                2     1.5        3         5.9%            5.9%   4.5  -",
    ]


def test_one_schedule_is_drawn_and_written_as_a_trace(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    shown = terminal("pipeline", *SIZES, "--schedule", "1f1b", "--layers", "13", "--output-cost", "2", "--trace", str(file))
    assert shown.code == 0, shown.err
    assert "3 4 4 2" in shown.out and "  0 F0" in shown.out and "  3 ..." in shown.out
    trace = json.loads(file.read_text())
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 4 * 8 * 2


def test_those_that_cannot_be_say_why_beside_the_others(terminal: Terminal) -> None:
    view = json.loads(terminal("pipeline", "--ranks", "4", "--microbatches", "3", "-o", "json").out)
    refused = {one["schedule"]: one["refused"] for one in view["schedules"] if one["refused"]}
    assert set(refused) == {"1f1b", "dualpipev"} and "write 4 or more" in refused["1f1b"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--schedule", "2f2b"), "schedule is '2f2b': write one of gpipe, 1f1b"),
        (("--schedule", "zbv", "--stages-per-rank", "3"), "stages_per_rank is 3: write 2 with schedule zbv"),
        (("--layers", "3"), "num_ranks is 4: the model has 3 layers"),
        (("--forward", "nan"), "forward is nan"),
        (("--forward", "0", "--input", "0", "--weight", "0"), "write more than 0"),
        (("--output-cost", "-1"), "output is -1.0"),
        (("--trace", "t.json"), "name it with --schedule"),
        (("--schedule", "zbv", "--trace", "/none/t.json"), "cannot be written"),
    ],
)
def test_what_cannot_be_asked_says_what_to_change(terminal: Terminal, words: tuple[str, ...], says: str) -> None:
    shown = terminal("pipeline", *SIZES, *words)
    assert shown.code == 2 and says in shown.err and shown.out == ""
