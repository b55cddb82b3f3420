"""`phalanx data sample` as people type it."""

import json

from tests.show.cli.terminal import Terminal


def test_samples_with_their_documents(terminal: Terminal) -> None:
    shown = terminal("data", "sample", "d", "--step", "3", "--batch", "8", "--seed", "5", "-n", "2", "--ids")
    assert shown.out.splitlines() == [
        "Step 3 of a run of 8 samples a step, seed 5; 50 samples of 64 tokens, documents end to end, in train of d",
        "Note: a note\\x1b[2J",
        "",
        "sample 4, read as number 16 of the run, in epoch 1",
        "  document 8 ends here: tokens 90 to 99 of its 100",
        "    one",
        "            two\\x1b[31m\\u202e\\x0d  document 1 begins",
        "    5 6",
        "  document 9 begins here: tokens 0 to 19 of its 50",
        "    three",
        "    5 6",
        "  padding: 35 tokens",
        "",
        "7 more of them; -n shows more",
    ]


def test_samples_as_data(terminal: Terminal) -> None:
    words = ["--index", "3", "--index", "4", "--split", "held_out", "--sequence", "8", "--packing", "best_fit"]
    shown = terminal("data", "sample", "d", *words, "-o", "json")
    told = json.loads(shown.out)
    assert "\x1b" not in shown.out and "\x1b[31m" in told["samples"][0]["pieces"][0]["text"]
    assert (told["split"], told["sequence"], told["packing"], told["step"]) == ("held_out", 8, "best_fit", None)
    assert terminal("data", "sample", "d", "-n", "0").code == 2
