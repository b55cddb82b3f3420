"""The console script and the daemons' entry points: cheap to load, strict about words, one clear error."""

import dataclasses
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import app
from phalanx.core import wire
from phalanx.core.data_asked import ExportMdsAsked, ImportMdsAsked, IndexAsked, PackAsked, PrepareAsked
from phalanx.core.errors import CheckpointError, DataError, SetupError, SpecError
from phalanx.core.llama_shape import LlamaShape
from phalanx.core.spec import LayoutSpec
from phalanx.core.spec_parse import parse_spec
from phalanx.core.vit_shape import VitShape
from phalanx.job.models.vit_config import config_of
from phalanx.operate import daemons
from phalanx.operate.control.questions import Question
from phalanx.operate.control.scheduler_process import Answer
from phalanx.operate.home import open_home
from phalanx.show.cli.tools import Tools
from tests.job.data.image_folders import write_images
from tests.job.data.random_tokens import write_tokens


def python(*words: str, feed: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *words], input=feed, capture_output=True, text=True, timeout=60)


@pytest.fixture(autouse=True)
def umask_stays() -> Iterator[None]:
    """A daemon's entry point narrows the umask of its process, which is this one here."""
    usual = os.umask(0o077)
    os.umask(usual)
    yield
    os.umask(usual)


def test_loading_it_loads_nothing_heavy() -> None:
    program = "import sys, json, phalanx.app; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(python("-c", program).stdout))
    assert not loaded & {"pydantic", "fastapi", "sqlalchemy", "uvicorn", "httpx", "typer", "torch", "mlflow", "numpy", "asyncio"}


def test_the_scheduler_answers_line_by_line_and_ends_with_its_input() -> None:
    question = wire.dumps(Question, Question(number=1, follows=False, now_ms=0))
    done = python("-P", "-m", "phalanx.app", "scheduler", "--home", "/nowhere", feed=f"{question}\njunk\n{question}\n")
    assert done.returncode == 0, done.stderr
    answers = [wire.loads(Answer, line) for line in done.stdout.splitlines()]
    assert [one.plan is None for one in answers] == [False, True, False]
    assert answers[1].error


@pytest.mark.parametrize(
    "words", [["server"], ["server", "--home"], ["agent", "--home", "x", "--what"], ["server", "--home", "x", "--port", "y"]]
)
def test_wrong_words_for_a_daemon_are_bad_input(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        app.main(words)
    assert ended.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_the_agent_of_a_home_that_joined_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["agent", "--home", str(tmp_path / "home"), "--joined"]) == 2
    assert "has joined no control plane; run `phalanx agent join`" in capsys.readouterr().err


def test_the_home_of_a_control_plane_joins_no_other_whatever_runs_there(tmp_path: Path) -> None:
    (tmp_path / "phalanx.db").touch()
    with pytest.raises(SetupError, match="holds a control plane"):
        app.join(tmp_path, "http://127.0.0.1:1", None, "")
    assert [path.name for path in tmp_path.iterdir()] == ["phalanx.db"]


def test_one_join_at_a_time_for_a_home(tmp_path: Path) -> None:
    open_home(tmp_path / "home")
    with daemons.only_one(tmp_path / "home", "up", "wait"), pytest.raises(SetupError, match="is at work on it"):
        app.join(tmp_path / "home", "http://127.0.0.1:1", None, "")


def test_ctrl_c_before_a_command_has_begun_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(tools: Tools, argv: Sequence[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("phalanx.show.cli.main.run", interrupted)
    assert app.main(["ls"]) == 130


def test_agent_is_a_group_of_commands_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["agent", "--help"]) == 0
    assert "revoke" in capsys.readouterr().out


def test_a_daemons_error_is_one_line_and_its_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "home.json").write_text('{"format": 99}')
    assert app.main(["server", "--home", str(tmp_path), "--port", "0"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert (said["event"], said["field"], said["value"]) == ("refused", "home", str(tmp_path))
    assert "upgrade Phalanx" in said["fix"]


def test_the_package_is_the_command_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["phalanx", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("phalanx", run_name="__main__")
    assert (ended.value.code, capsys.readouterr().out.startswith("phalanx ")) == (0, True)


def test_data_is_prepared_and_shown_through_the_tools(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(f"the quick brown fox number {number} jumps over the lazy dog\n" * 20)
    seen: list[tuple[str, int, int]] = []
    made = app.prepare_data(
        PrepareAsked(paths=(str(text),), out=tmp_path / "out", vocab_size=300), lambda *at: seen.append(at)
    )  # fmt: skip
    assert made == {**app.show_data(tmp_path / "out", lambda *_: None), "left_out": {}, "resumed": None}
    verified = app.verify_data(tmp_path / "out", lambda *at: seen.append(at))
    assert verified == {**app.show_data(tmp_path / "out", lambda *_: None), "checksums_ok": True}
    assert seen[-1][0] == "checking"
    assert seen[-1][1] == seen[-1][2] > 0
    assert made["documents"] == 40
    assert seen


def test_images_are_packed_indexed_and_shown_through_the_tools(tmp_path: Path) -> None:
    images = write_images(tmp_path / "images", each=2)
    seen: list[tuple[str, int, int]] = []
    made = app.make_data(PackAsked(folder=tmp_path / "images", out=tmp_path / "out", shard_mib=1), lambda *at: seen.append(at))
    assert made == app.show_data(tmp_path / "out", lambda *_: None)
    assert (made["samples"], made["classes"]) == (len(images), ["cat", "dog", "eel"])
    (tmp_path / "names").write_text("one\ntwo\nthree\n")
    asked = IndexAsked(paths=(str(tmp_path / "out"),), classes=tmp_path / "names", processes=1, force=True)
    assert app.make_data(asked, lambda *at: seen.append(at))["classes"] == ["one", "two", "three"]
    assert app.verify_data(tmp_path / "out", lambda *at: seen.append(at))["samples"] == len(images)
    assert [stage for stage, done, total in seen if done == total > 0] == ["packing", "indexing", "checking"]
    with pytest.raises(DataError, match="classes"):
        app.make_data(IndexAsked(paths=(str(tmp_path / "out"),), classes=tmp_path / "none"), lambda *_: None)


def test_mds_is_imported_and_exported_through_the_tools(tmp_path: Path) -> None:
    def told(*at: object) -> None:
        seen.append(at)

    seen: list[tuple[object, ...]] = []
    write_tokens(tmp_path / "data", [300, 260])
    written = app.make_data(ExportMdsAsked(folder=tmp_path / "data", out=tmp_path / "mds", sequence=64), told)
    assert (written["samples"], written["shards"], written["columns"]) == (8, 1, {"tokens": "ndarray:uint16:64"})
    asked = ImportMdsAsked(folder=tmp_path / "mds", out=tmp_path / "samples")
    assert app.make_data(asked, told)["fields"] == {"tokens.npy": {"samples": 8, "size_bytes": 8 * 256}}
    assert seen == [("exporting", 600, 1120), ("exporting", 1120, 1120), ("importing", 1256, 1256)]
    with pytest.raises(DataError, match="--tokens"):
        app.make_data(dataclasses.replace(asked, tokenizer=tmp_path), told)
    with pytest.raises(DataError, match="--tokenizer"):
        app.make_data(dataclasses.replace(asked, tokens="tokens"), told)


def test_a_workdir_is_packed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print()\n")
    assert app.pack_workdir(tmp_path) == app.pack_workdir(tmp_path) != b""


def test_sampling_from_no_model_fails_with_its_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert app.sample_model(tmp_path / "none", "", "hello", 4, 0, 0.0) == 2
    said = capfd.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err


def test_what_a_run_reads_is_said_by_the_data_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`data sample` and `data mix`, wired."""
    tokens = write_tokens(tmp_path / "web", [900])
    words = ["--sequence", "50", "--batch", "4", "-o", "json"]
    assert app.main(["data", "sample", str(tmp_path / "web"), "--index", "7", "--ids", *words]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["samples"]
    assert shown["pieces"][0]["ids"] == tokens[350:401].tolist()
    (tmp_path / "data.yaml").write_text("path: web\n")
    assert app.main(["data", "mix", str(tmp_path / "data.yaml"), "--steps", "9", *words]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert (source["samples"], source["read"], source["next_epochs"]) == (17, 36, [4, 8])


def test_what_the_model_of_init_cannot_have_is_refused_before_a_job_waits(tmp_path: Path) -> None:
    shape = LlamaShape(vocab=64, dim=64, layers=2, heads=6, head_dim=16, ffn_dim=64)
    (tmp_path / "config.json").write_text(json.dumps({"shape": wire.plain(LlamaShape, shape), "recipe": {}}))

    def foreseen(layout: LayoutSpec, **asked: object) -> Sequence[str]:
        job = {"name": "lm", "kind": "train", "recipe": "llama", "data": {"path": "d"}, "resources": {"gpus": "4"}}
        return app.foresee_model(replace(parse_spec({**job, "hyperparameters": {"init": str(tmp_path), **asked}}), layout=layout))

    assert foreseen(LayoutSpec(tp=2)) == foreseen(LayoutSpec(tp=2), dtype="fp8") == ()
    with pytest.raises(SpecError, match=r"layout\.tp: 4: write one of 1, 2: its ranks share the model's 6 heads evenly"):
        foreseen(LayoutSpec(tp=4))
    (tmp_path / "config.json").write_text(json.dumps({"shape": wire.plain(LlamaShape, replace(shape, ffn_dim=48)), "recipe": {}}))
    with pytest.raises(SpecError, match=r"layout\.tp: 2: write 1: 8-bit .* have 24 of the feed-forward \(ffn_dim: 48\); or change"):
        foreseen(LayoutSpec(tp=2), dtype="fp8")
    (tmp_path / "config.json").write_text(json.dumps({"shape": wire.plain(LlamaShape, replace(shape, ffn_dim=40)), "recipe": {}}))
    with pytest.raises(SpecError, match=r"hyperparameters\.dtype: 'fp8': write bf16: the width of the feed-forward .* is 40"):
        foreseen(LayoutSpec(), dtype="fp8")
    assert "is not there on this machine" in foreseen(LayoutSpec(tp=4), init=str(tmp_path / "none"))[0]


def test_of_images_too_the_folder_of_init_is_looked_at_before_a_job_waits(tmp_path: Path) -> None:
    shape = VitShape(image=8, patch=4, dim=16, layers=2, heads=2, classes=3)
    (tmp_path / "config.json").write_text(json.dumps(config_of(shape, ("cat", "dog", "eel"), "float32")))
    job = {"name": "vit", "kind": "train", "recipe": "vit", "data": {"path": "d"}, "resources": {"gpus": "2"}}

    def foreseen(layout: LayoutSpec, **asked: object) -> Sequence[str]:
        given = {"init": str(tmp_path), "eval_batches": 0, **asked}
        return app.foresee_model(replace(parse_spec({**job, "hyperparameters": given}), layout=layout))

    assert foreseen(LayoutSpec(zero=1)) == foreseen(LayoutSpec(), classes=9) == ()
    with pytest.raises(SpecError, match=r"layout\.tp: 2: write 1: a vision transformer is not cut"):
        foreseen(LayoutSpec(tp=2))
    (tmp_path / "config.json").write_text(json.dumps({**config_of(shape, (), "float32"), "hidden_act": "relu"}))
    with pytest.raises(CheckpointError, match=r"hidden_act of .*config\.json: 'relu': is not computed here, only 'gelu'"):
        foreseen(LayoutSpec())
    assert "is not there on this machine" in foreseen(LayoutSpec(), init=str(tmp_path / "none"))[0]
