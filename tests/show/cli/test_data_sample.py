"""`phalanx data sample` and `phalanx data mix` as people type them."""

import json
from pathlib import Path

import pytest

from tests.show.cli.terminal import Terminal

JOB = """
name: lm
kind: train
recipe: llama
num_nodes: 2
resources: {gpus: 4}
hyperparameters: {steps: 60, sequence: 32, batch_per_rank: 2, accumulate: 3, seed: 7}
data:
"""
DATA = """
sources:
  web: {path: web, weight: 1}
  code: {path: code, weight: 1}
packing: best_fit
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("web", "code"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    (tmp_path / "data.yaml").write_text(DATA)
    (tmp_path / "job.yaml").write_text(JOB + "\n".join(f"  {line}" for line in DATA.splitlines()))
    return tmp_path


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


def test_samples_of_a_jobs_step(terminal: Terminal, folder: Path) -> None:
    """Its recipe and gang say the rest: 8 ranks of 6 samples each."""
    lines = terminal("data", "sample", str(folder / "job.yaml"), "--step", "3").out.splitlines()
    rows = "samples of 32 tokens, whole documents, in train of web (50), code (50)"
    assert lines[0] == f"Step 3 of a run of 48 samples a step, seed 7; {rows}"
    assert lines[3] == "sample 4 of web, read as number 96 of the run, in epoch 1"
    words = ["--sequence", "64", "--packing", "concatenate", "--batch", "4"]
    told = json.loads(terminal("data", "sample", str(folder / "job.yaml"), *words, "-o", "json").out)
    assert (told["sequence"], told["packing"], told["batch"]) == (64, "concatenate", 4)


def test_what_a_job_will_read(terminal: Terminal, folder: Path) -> None:
    shown = terminal("data", "mix", str(folder / "job.yaml"), "--first", "10")
    web, code = folder / "web", folder / "code"
    assert shown.out.splitlines() == [
        "60 steps of 48 samples of 32 tokens, whole documents, seed 7: 92,160 tokens from 2 sources",
        "",
        "SOURCE  TOKENS  SAMPLES   ASKED  FIRST 10  ALL STEPS   READ  EPOCHS  NEXT EPOCHS AFTER STEP  PATH",
        f"web      5,000       50  50.00%    50.00%     50.00%  1,440   28.80  9, 19, 29, 39, ...      {web}",
        f"code     5,000       50  50.00%    50.00%     50.00%  1,440   28.80  9, 19, 29, 39, ...      {code}",
        "",
        "Weights",
        "  AFTER STEP  STEPS  SOURCE    ASKED    GOT  READ",
        "           0     30  web      50.00%  6.94%   100",
        "           0     30  code     50.00%  6.94%   100",
        "          30     30  web     100.00%  6.94%   100",
        "          30     30  code     0.001%  6.94%   100",
        "",
        "Shares from step 1 to 60, each of 100% at most",
        "  SOURCE",
        "  web     ▄█▁",
        "  code    ▄█▁",
        "",
        "Warning: web\\x1b[31m is read too often.",
    ]


def test_the_data_alone_needs_what_a_recipe_would_say(terminal: Terminal, folder: Path) -> None:
    file = str(folder / "data.yaml")
    words = ["--steps", "5", "--batch", "4", "--sequence", "16", "--seed", "2", "-o", "json"]
    told = json.loads(terminal("data", "mix", file, "--set", "data.packing=concatenate", *words).out)
    assert (told["steps"], told["batch"], told["sequence"], told["seed"], told["packing"]) == (5, 4, 16, 2, "concatenate")
    lacking = terminal("data", "mix", file, "--steps", "5")
    assert lacking.code == 2 and lacking.err.startswith("Error: --sequence: give it")
    wrong = terminal("data", "mix", file, "--set", "data.sources.web.weight=-1", *words)
    assert wrong.code == 2 and "data.sources.web.weight" in wrong.err
    (folder / "none.yaml").write_text("name: x\nentrypoint: python a.py\n")
    assert "data: " in terminal("data", "mix", str(folder / "none.yaml")).err
