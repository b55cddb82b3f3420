"""Bad input gets one clear error: the field, the value, what to change."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.core import features, wire
from phalanx.core.errors import SpecError
from phalanx.core.spec import JobSpec, Notify
from phalanx.core.spec_parse import SPEC_BYTES_MAX, command_line, load_spec, parse_spec, recipe_config

PLAIN: dict[str, Any] = {"name": "x", "entrypoint": "python train.py"}
RECIPE: dict[str, Any] = {"name": "x", "kind": "train", "recipe": "llama", "data": {"path": "d"}}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"secret_files": ["a-b"]}, "name secrets with letters"),
        ({"secret_files": ["PHALANX_X"]}, "PHALANX_ names belong"),
        ({"secret_files": ["A", "A"]}, "name each secret once"),
        ({"secret_files": ["A"], "env": {"A_FILE": "x"}}, "A_FILE says where its file is"),
        ({"secret_files": ["A"], "secrets": ["A_FILE"]}, "A_FILE says where its file is"),
    ],
)
def test_a_secret_as_a_file_is_held_to_the_rules_of_secrets(fields: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says) as refused:
        parse_spec({**PLAIN, **fields})
    assert refused.value.field == "secret_files"


def test_a_secret_may_be_a_file_a_variable_or_both_and_needs_a_node_that_gives_it() -> None:
    spec = parse_spec({**PLAIN, "secrets": ["A", "B"], "secret_files": ["B", "C"]})
    assert spec.all_secrets == ("A", "B", "C")
    assert {"secrets", "secret-files"} <= features.needed(spec)
    assert "secret-files" not in features.needed(parse_spec({**PLAIN, "secrets": ["A"]}))


def test_yaml_numbers_become_the_text_that_the_dataclass_wants() -> None:
    spec = parse_spec({**PLAIN, "resources": {"gpus": 2, "memory": 1024}, "env": {"A": 1}})
    assert (spec.resources.gpus, spec.resources.memory_bytes, spec.env) == ("2", 1024, {"A": "1"})


def test_a_job_file_may_be_named_by_a_text(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nentrypoint: python train.py\n")
    assert load_spec(str(tmp_path / "job.yaml")) == load_spec(tmp_path / "job.yaml")


def test_variables_of_ours_that_a_job_may_set_are_taken() -> None:
    own = {"PHALANX_FAULT": "", "PHALANX_CHECKPOINT_PATIENCE_S": "60"}
    assert parse_spec({**PLAIN, "env": own}).env == own


def test_entrypoint_is_a_list_or_a_shell_like_string() -> None:
    assert command_line(parse_spec({**PLAIN, "entrypoint": ["a b", 1]}).entrypoint) == ("a b", "1")
    assert command_line(parse_spec({**PLAIN, "entrypoint": "a 'b c'"}).entrypoint) == ("a", "b c")


def test_spec_survives_the_wire() -> None:
    spec = parse_spec({**RECIPE, "hyperparameters": {"steps": 3, "lr": 1e-3}, "max_duration": "2h"})
    assert wire.loads(JobSpec, wire.dumps(JobSpec, spec)) == spec
    assert spec.max_duration_ms == 7_200_000


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ({**PLAIN, "prioritty": 3}, "prioritty", "did you mean 'priority'"),
        ({**PLAIN, "resources": {"gpu": 1}}, "resources.gpu", "did you mean 'gpus'"),
        ({**PLAIN, "checkpoint": {"zzz": 1}}, "checkpoint.zzz", "known are every, keep_last"),
        ({**PLAIN, "checkpoint": {"keep_best": 1}}, "checkpoint.best_metric", "name one, such as val_loss"),
        ({**PLAIN, "checkpoint": {"keep_best": 1, "best_metric": "a b"}}, "checkpoint.best_metric", "name one, such as val_loss"),
        ({**PLAIN, "checkpoint": {"best_metric": "loss"}}, "checkpoint.best_metric", "say with keep_best"),
        ({**PLAIN, "checkpoint": {"store": "here"}}, "checkpoint.store", "write s3://bucket/prefix"),
        ({**PLAIN, "checkpoint": {"store": "s3://bkt"}}, "checkpoint.store", "write s3://bucket/prefix"),
        ({**PLAIN, "checkpoint": {"store": "s3://key:secret@bkt/x"}}, "checkpoint.store", "credentials come from the environment"),
        ({**PLAIN, "checkpoint": {"store": "s3://bkt/x?sig=1"}}, "checkpoint.store", "write s3://bucket/prefix"),
        ({**PLAIN, "checkpoint": {"store": "memory://"}}, "checkpoint.store", "write s3://bucket/prefix"),
        ({**PLAIN, "checkpoint": {"store": "/mnt/../etc"}}, "checkpoint.store", "an absolute folder"),
        ({**PLAIN, "checkpoint": {"keep_best": -1}}, "checkpoint.keep_best", "0 or more"),
        ({**PLAIN, "checkpoint": {"best_mode": "least"}}, "checkpoint.best_mode", "'min'"),
        ({**PLAIN, "checkpoint": {"every": 10, "keep_every": 25}}, "checkpoint.keep_every", "multiple of checkpoint.every (10)"),
        ({**PLAIN, "checkpoint": {"every": "auto"}}, "checkpoint.every", "only a recipe measures"),
        ({**PLAIN, "checkpoint": {"every": "often"}}, "checkpoint.every", "or auto"),
        ({**RECIPE, "checkpoint": {"every": "auto", "keep_every": 10}}, "checkpoint.keep_every", "leave it out"),
        ({**PLAIN, "checkpoint": {"every": 0, "keep_every": -1}}, "checkpoint.keep_every", "0 or more"),
        ({**RECIPE, "checkpoint": {"keep_best": 1, "best_metric": "bleu"}}, "checkpoint.best_metric", "val_loss and loss"),
        (
            {**RECIPE, "checkpoint": {"keep_best": 1, "best_metric": "val_loss"}, "hyperparameters": {"eval_batches": 0}},
            "checkpoint.best_metric",
            "not measured with eval_batches: 0",
        ),
        ({**PLAIN, "name": "Tiny_LM"}, "name", "lower-case"),
        ({**PLAIN, "name": "../x"}, "name", "lower-case"),
        ({"entrypoint": "a"}, "name", "required"),
        ({"name": "x"}, "entrypoint", "exactly one"),
        ({**RECIPE, "entrypoint": "a"}, "entrypoint", "exactly one"),
        ({**PLAIN, "entrypoint": "a 'b"}, "entrypoint", "left open"),
        ({**PLAIN, "num_nodes": 0}, "num_nodes", "1 to 100000"),
        ({**PLAIN, "num_nodes": "many"}, "num_nodes", "whole number"),
        ({**PLAIN, "priority": 101}, "priority", "0 to 100"),
        ({**PLAIN, "kind": "trian"}, "kind", "'train'"),
        ({**PLAIN, "resources": {"gpus": "H100:0"}}, "resources.gpus", "TYPE:COUNT"),
        ({**PLAIN, "resources": {"memory": "16 gigs"}}, "resources.memory", "'16GiB'"),
        ({**PLAIN, "max_duration": "2 hours"}, "max_duration", "'2h'"),
        ({**PLAIN, "max_duration": "0s"}, "max_duration", "write a longer time"),
        ({**PLAIN, "env": {"A B": "1"}}, "env.A B", "letters"),
        ({**PLAIN, "secrets": ["A B"]}, "secrets", "letters"),
        ({**PLAIN, "secrets": ["PHALANX_X"]}, "secrets", "belong to the platform"),
        ({**PLAIN, "secrets": ["A"], "env": {"A": "1"}}, "secrets", "give it once"),
        ({**PLAIN, "secrets": ["A", "B", "A"]}, "secrets", "name each secret once"),
        ({**PLAIN, "notify": {"webhook": "http://me:it@h/"}}, "notify.webhook", "without user and password"),
        ({**PLAIN, "notify": {"webhook": "http://h:99999/"}}, "notify.webhook", "http or https URL"),
        ({**PLAIN, "notify": {"webhook": "http://h/" + "a" * 1_000}}, "notify.webhook", "at most 1000"),
        ({**PLAIN, "notify": {"webhook": "http://h/", "on": []}}, "notify.on", "at least one occasion"),
        ({**PLAIN, "notify": {"webhook": "http://h/", "on": ["ended"]}}, "notify.on.0", "'finished'"),
        ({**PLAIN, "notify": {"webhook": "http://h/", "secret": "a b"}}, "notify.secret", "stored secret"),
        ({**PLAIN, "env": {"PHALANX_JOB": "1"}}, "env.PHALANX_JOB", "belong to the platform"),
        ({**RECIPE, "recipe": "lama"}, "recipe", "did you mean 'llama'"),
        ({**RECIPE, "kind": "batch"}, "kind", "kind: train"),
        ({**RECIPE, "data": None}, "data", "phalanx data prepare"),
        ({**RECIPE, "hyperparameters": {"dims": 3}}, "hyperparameters.dims", "did you mean 'dim'"),
        ({**RECIPE, "hyperparameters": {"dim": 100, "heads": 3}}, "hyperparameters.dim", "multiple of 2 x heads"),
        ({**RECIPE, "hyperparameters": {"lr": float("nan")}}, "hyperparameters.lr", "finite"),
        ({**PLAIN, "hyperparameters": {"scale": float("inf")}}, "hyperparameters.scale", "finite"),
        ({**PLAIN, "entrypoint": "cd x && python train.py"}, "entrypoint", "[bash, -c"),
        ({**PLAIN, "entrypoint": "python train.py | tee log"}, "entrypoint", "[bash, -c"),
        ({**PLAIN, "entrypoint": " "}, "entrypoint", "program to run"),
        ({**PLAIN, "entrypoint": ["", "a"]}, "entrypoint", "program to run"),
        ({**PLAIN, "entrypoint": "a\0b"}, "entrypoint", "NUL"),
        ({**PLAIN, "environment": {"python": "\0"}}, "environment", "NUL"),
        ({**PLAIN, "env": {"A": "\ud800"}}, "env", "UTF-8"),
        ({**PLAIN, "entrypoint": ["\udfff"]}, "entrypoint", "UTF-8"),
        ({**RECIPE, "hyperparameters": {"steps": 0}}, "hyperparameters.steps", "above 0"),
        ({**RECIPE, "hyperparameters": {"steps": True}}, "hyperparameters.steps", "write a number"),
        ({**RECIPE, "hyperparameters": {"lr": True}}, "hyperparameters.lr", "write a number"),
        (["not a mapping"], "job", "mapping"),
        (None, "job", "mapping"),
    ],
)
def test_bad_field_is_named_with_its_value_and_mend(data: object, field: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(data)
    assert caught.value.field == field
    assert words in caught.value.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"name: x\nentrypoint: a\nenv: &a {A: b}\nhyperparameters: *a\n", "line 4"),
        (b"name: x\nname: y\n", "stands twice"),
        (b"a: [", "not valid YAML"),
        (b"name: \xff\xfe", "UTF-8"),
        (b"[" * 5_000, "not valid YAML"),
        (b"#" * (SPEC_BYTES_MAX + 1), "KiB"),
        (b"? {a: b}\n: 1\n", "plain text"),
    ],
)
def test_bad_file_is_one_clear_error(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(text)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert words in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="name an existing YAML file"):
        load_spec(tmp_path / "none.yaml")


def test_paths_are_taken_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nkind: train\nrecipe: llama\nworkdir: .\ndata: {path: d}\n")
    (tmp_path / "d").mkdir()
    with pytest.raises(SpecError, match="phalanx data prepare PATHS --out"):
        load_spec(tmp_path / "job.yaml")
    (tmp_path / "d" / "manifest.json").touch()
    spec = load_spec(tmp_path / "job.yaml")
    assert spec.data is not None
    assert (spec.workdir, spec.data.path) == (str(tmp_path.resolve()), str(tmp_path.resolve() / "d"))


def test_defaults_of_the_recipe_are_the_demo() -> None:
    config = recipe_config(parse_spec(RECIPE))
    assert (config.dim, config.layers, config.steps, config.problems()) == (128, 4, 400, [])


def test_on_and_yes_are_words_and_only_true_and_false_are_booleans(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: x\nentrypoint: [a]\nnotify: {webhook: 'http://h/p', on: [started, finished]}\n"
        "env: {ANSWER: yes, OTHER: off, LONG: falsehood}\nhyperparameters: {flag: true, word: no}\n"
    )
    spec = load_spec(job)
    assert spec.notify == Notify(webhook="http://h/p", on=("started", "finished"))
    assert spec.env == {"ANSWER": "yes", "OTHER": "off", "LONG": "falsehood"}
    assert spec.hyperparameters == {"flag": True, "word": "no"}


WRONG_TYPES: list[tuple[dict[str, object], str, object, str]] = [
    ({"entrypoint": True}, "entrypoint", True, "a command line, or a list of words"),
    ({"entrypoint": 'a "b'}, "entrypoint", 'a "b', "left open; close it"),
    ({"secrets": "TOKEN"}, "secrets", "TOKEN", "a list, such as [a, b]"),
    ({"max_duration": 5}, "max_duration", 5, "with its unit: 5s, 5m, 5h or 5d"),
    ({"env": {"A": True}}, "env.A", True, "in quotes"),
    ({"env": {"str": True}}, "env.str", True, "in quotes"),
    ({"num_nodes": "two"}, "num_nodes", "two", "write a whole number"),
    ({"resources": 3}, "resources", 3, "a mapping of its fields"),
    ({"resources": {"cpus": "many"}}, "resources.cpus", "many", "write a number"),
    ({"workdir": None}, "workdir", "null", "write text"),
    ({"notify": {}}, "notify.webhook", "(missing)", "is required"),
    ({"preemptible": "no"}, "preemptible", "no", "write true or false"),
    ({"num_nodes": "2"}, "num_nodes", "2", "a number, without quotes"),
    ({"num_nodes": True}, "num_nodes", True, "true and false are none"),
    ({"resources": {"cpus": "1e9"}}, "resources.cpus", 1e9, "write 0 to 1,000,000 cores"),
    ({"resources": {"cpus": "1e1"}}, "resources.cpus", "1e1", "YAML reads it as text; write 1.0e+1"),
    ({"resources": {"memory": "1PB"}}, "resources.memory", "1PB", "units are B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"),
    ({"max_duration": "2w"}, "max_duration", "2w", "units are ms, s, m, h, d"),
    ({"hyperparameters": {"a": [1]}}, "hyperparameters.a", [1], "text, a number, true or false"),
    ({"kind": "trian"}, "kind", "trian", "write 'batch', 'train'"),
]


@pytest.mark.parametrize(("change", "field", "value", "fix"), WRONG_TYPES, ids=[str(change) for change, *_ in WRONG_TYPES])
def test_a_value_of_the_wrong_type_is_told_what_to_write(change: dict[str, object], field: str, value: object, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec({"name": "x", "entrypoint": ["a"], **change})
    assert (caught.value.field, caught.value.value) == (field, value)
    assert fix in caught.value.fix
    assert "input should be" not in caught.value.fix


@pytest.mark.parametrize(("text", "what"), [("", "is empty"), ("[a]", "holds a list"), ("a", "holds a single value")])
def test_a_job_file_without_fields_is_named(tmp_path: Path, text: str, what: str) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(text)
    with pytest.raises(SpecError, match=what) as caught:
        load_spec(job)
    assert (caught.value.field, caught.value.value) == ("job file", str(job))
