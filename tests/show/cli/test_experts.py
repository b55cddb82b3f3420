"""`phalanx experts` as people type it."""

import json
from pathlib import Path

import pytest

from tests.show.cli.terminal import Terminal

LAYOUT = ("--num-nodes", "2", "--gpus-per-node", "4", "--slots-per-gpu", "2")
LOADS = "90,132,40,61,104,165,39,4,73,56,183,86\n\n20 107 104 64 19 197 187 157 172 86 16 27\n"


@pytest.fixture
def loads(tmp_path: Path) -> str:
    (tmp_path / "loads.csv").write_text(LOADS)
    return str(tmp_path / "loads.csv")


def test_a_line_for_each_layer(terminal: Terminal, loads: str) -> None:
    shown = terminal("experts", loads, *LAYOUT, "--num-groups", "4")
    assert shown.code == 0, shown.err
    assert shown.out.splitlines() == [
        "2 layers of 12 experts in 4 groups that each lie on one node, on 2 nodes of 4 GPUs with 2 slots each",
        "LAYER  LARGEST / MEAN LOAD  LEAVES ITS NODE  REPLICATED  MOST REPLICAS",
        "    0                1.138            50.0%           4  2 of expert 1",
        "    1                1.194            50.0%           4  2 of expert 1",
        "The fullest of 8 GPUs has 1.194 times the mean load. -o json says what lies where.",
    ]


def test_json_has_what_lies_where(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "loads.json"
    file.write_text("[[8, 1, 1, 1, 1]]")
    view = json.loads(terminal("experts", str(file), "--gpus-per-node", "2", "--slots-per-gpu", "3", "-o", "json").out)
    (layer,) = view["layers"]
    assert (view["num_nodes"], view["num_groups"], view["num_experts"]) == (1, 0, 5)
    assert layer["replicas"] == [2, 1, 1, 1, 1] and layer["imbalance"] == 1.0 and layer["between_nodes"] == 0.0
    assert [len(gpu) for gpu in layer["experts"]] == [3, 3] and layer["shares"][0][0] == 0.5
    even = terminal("experts", str(file), "--gpus-per-node", "2", "--slots-per-gpu", "3", "--even-shares")
    assert even.code == 0 and "2 of expert 0" in even.out


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("none.csv", None, "is not there"),
        ("a.csv", "", "has no loads"),
        ("a.csv", "1 2\n3\n", "has 2 experts in layer 0 and 1 in layer 1"),
        ("a.csv", "1 two\n", "loads of layer 0 is 'two': write a number of tokens"),
        ("a.csv", "1 -2\n", "write a finite number of tokens, 0 or more"),
        ("a.json", "[1, 2]", "is no list of lists"),
        ("a.json", "[[1, true]]", "write a number of tokens"),
        ("a.json", "[[1, ", "is no JSON"),
        ("a.json", "[[1, 2], [], [3, 4]]", "has 2 experts in layer 0 and 0 in layer 1"),
        ("a.json", "[[], []]", "has no loads"),
        ("a.json", f"[[1{'0' * 400}, 2]]", "loads of layer 0 is '10000"),
        ("a.json", f"[[{'9' * 5000}]]", "is no JSON"),
        ("a.json", "[" * 100_000, "is no JSON"),
        ("a.csv", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17\n", "write 3 or more"),
    ],
)
def test_what_cannot_be_says_what_to_change(terminal: Terminal, tmp_path: Path, name: str, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    shown = terminal("experts", str(tmp_path / name), *LAYOUT)
    assert shown.code == (4 if text is None else 2) and says in shown.err and shown.out == ""


@pytest.mark.parametrize("option", ["--num-nodes", "--gpus-per-node", "--slots-per-gpu", "--num-groups"])
def test_a_size_without_bounds_is_refused_at_once(terminal: Terminal, loads: str, option: str) -> None:
    shown = terminal("experts", loads, *LAYOUT, option, "10000000")
    assert shown.code == 2 and option in shown.err and "1048576" in shown.err
