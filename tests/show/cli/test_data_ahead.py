"""`submit` and `plan` look at a job's data first: what they ask, what they warn of, and that nothing is sent that is refused."""

from pathlib import Path

import pytest

from phalanx.core.views import JobView, PlanView
from tests.recorded import job_view, said
from tests.show.cli.terminal import Terminal
from tests.show.cli.test_plan import plan_view

JOB = """
name: lm
kind: train
recipe: llama
num_nodes: 4
resources: {gpus: 3}
env: {AWS_REGION: here}
hyperparameters: {sequence: 32, batch_per_rank: 5}
data: {path: s3://bucket/corpus}
"""


@pytest.fixture
def answering(terminal: Terminal) -> Terminal:
    terminal.server.on("POST", "/jobs", said(JobView, job_view(state="pending")))
    terminal.server.on("POST", "/plan", said(PlanView, plan_view()))
    return terminal


@pytest.mark.parametrize("command", ["submit", "plan"])
def test_what_cannot_be_seen_from_here_is_a_warning_beside_the_answer(answering: Terminal, tmp_path: Path, command: str) -> None:
    """A gang of 4 nodes with 3 devices reads 60 samples in a held-out batch."""
    (tmp_path / "job.yaml").write_text(JOB)
    shown = answering(command, str(tmp_path / "job.yaml"), "-o", "json")
    assert shown.err == "Warning: 32 tokens, 60 held out, {'AWS_REGION': 'here'}\\x1b.\n"
    assert shown.code == 0 and shown.out.startswith("{")
    unscored = answering(command, str(tmp_path / "job.yaml"), "--set", "hyperparameters.eval_batches=0", "-o", "json")
    assert unscored.err.startswith("Warning: 32 tokens, 0 held out")


def test_of_a_recipe_of_images_it_is_asked_how_many_are_held_out(answering: Terminal, tmp_path: Path) -> None:
    job = JOB.replace("llama", "vit").replace("{sequence: 32, ", "{held_out: 99, classes: 7, ")
    (tmp_path / "job.yaml").write_text(job)
    shown = answering("plan", str(tmp_path / "job.yaml"))
    assert shown.err.startswith("Warning: 0 tokens, 60 held out"), "and no rows of tokens"
    assert shown.err.endswith(" 99 of images, 7 classes\\x1b.\n")
    mixed = answering("data", "mix", str(tmp_path / "job.yaml"))
    assert mixed.code == 2 and "is of a job that reads images" in mixed.err


def test_the_folder_of_init_is_looked_at_too(answering: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("hyperparameters: {", "hyperparameters: {init: models/a, "))
    assert answering("plan", str(tmp_path / "job.yaml")).err.endswith(f"Warning: {tmp_path}/models/a\\x1b.\n")
    monkeypatch.chdir(tmp_path / "home")
    shown = answering("plan", str(tmp_path / "job.yaml"), "--set", "hyperparameters.init=models/b")
    assert shown.err.endswith(f"{tmp_path}/home/models/b\\x1b.\n")
    refused = answering("submit", str(tmp_path / "job.yaml"), "--set", "hyperparameters.init=odd")
    assert refused.code == 2 and refused.err.endswith("Error: layout.tp is 1: write 1\\x1b\n")
    of_images = JOB.replace("llama", "vit").replace("{sequence: 32, ", "{held_out: 99, init: models/c, ")
    (tmp_path / "job.yaml").write_text(of_images)
    assert answering("plan", str(tmp_path / "job.yaml")).err.endswith(f"Warning: {tmp_path}/models/c\\x1b.\n")


@pytest.mark.parametrize("command", ["submit", "plan"])
def test_what_the_ranks_would_refuse_is_not_sent(answering: Terminal, tmp_path: Path, command: str) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    shown = answering(command, str(tmp_path / "job.yaml"), "--set", "data.path=s3://bucket/tars")
    assert (shown.code, shown.err) == (2, "Error: data.path is 's3://bucket/tars': holds samples\\x1b\n")
    assert answering.server.asked == []


def test_of_a_script_nobody_knows_what_it_reads_and_of_no_data_nothing_is_asked(answering: Terminal, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nentrypoint: 'true'\ndata: {path: s3://bucket/corpus}\n")
    assert answering("submit", str(tmp_path / "job.yaml")).err == "Warning: 0 tokens, 0 held out, {}\\x1b.\n"
    (tmp_path / "job.yaml").write_text("name: x\nentrypoint: 'true'\n")
    assert answering("submit", str(tmp_path / "job.yaml")).err == ""
