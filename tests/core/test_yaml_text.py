"""YAML as people hand it in: whatever is wrong is one error with its line, and dates stay texts."""

from pathlib import Path

import pytest
import yaml

from phalanx.core.errors import SpecError
from phalanx.core.policy_parse import load_policy
from phalanx.core.spec_parse import load_spec
from phalanx.core.yaml_text import DEPTH_MAX, read_yaml, read_yaml_file


@pytest.mark.parametrize("text", ["2026-12-01", "2026-13-01", "2026-12-01T09:00:00Z", "2026-12-01 09:00:00.5 +01:00"])
def test_dates_are_texts(text: str) -> None:
    assert read_yaml(f"at: {text}") == {"at": text}


@pytest.mark.parametrize("value", ["!!int abc", "!!int ''", "!!float x", "!!timestamp 2026-13-01", "!!timestamp x", "!!bool maybe"])
def test_a_value_that_its_tag_belies_is_malformed_yaml_and_no_bug(value: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: x\nat: {value}\n")
    with pytest.raises(yaml.YAMLError):
        read_yaml(file.read_text())
    with pytest.raises(SpecError, match=r"is not valid YAML at line 2: .* is no ") as caught:
        read_yaml_file(file, "job file", 1024)
    assert (caught.value.field, caught.value.value) == ("job file", str(file))


BOMBS = {
    "hexadecimal": "a: 0x" + "f" * 60_000,
    "binary": "a: 0b" + "1" * 60_000,
    "octal": "a: 0" + "7" * 60_000,
    "base 60": "a: 1" + ":1" * 30_000,
    "base 60 with a point": "a: 1" + ":1" * 30_000 + ".5",
    "decimal": "a: " + "9" * 5_000,
    "a tag": "a: !!int '" + "9" * 5_000 + "'",
    "a version": "%YAML " + "9" * 5_000 + ".1\n---\na: 1",
    "lists": "a: " + "[" * 1_000,
    "mappings": "a: " + "{a: " * 1_000,
    "blocks": "- " * 1_000,
    "keys": "? " * 1_000,
    "aliases": "a: &a [x, x]\nb: &b [*a, *a]",
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_explode_is_one_error_with_its_line(name: str, tmp_path: Path) -> None:
    """Numbers were read in full, and then crashed whoever wanted to show them: a job file ended with a traceback."""
    file = tmp_path / "job.yaml"
    file.write_text(BOMBS[name])
    with pytest.raises(SpecError, match="is not valid YAML") as caught:
        load_spec(file)
    assert len(caught.value.fix) < 300


@pytest.mark.parametrize("value", ["!!map [1]", "!!map x", "!!set x"])
def test_what_only_says_that_it_is_a_mapping_is_one_error(value: str, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    for text in (value, f"name: x\nenv: {value}\n"):
        file.write_text(text)
        with pytest.raises(SpecError, match="is not valid YAML"):
            load_spec(file)


def test_a_number_that_is_a_date_and_a_time_may_be_a_text(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: x\nentrypoint: [train, --run, 20261130134500123456]\nenv: {RUN: 20261130134500123456}\n")
    spec = load_spec(file)
    assert (spec.env["RUN"], spec.entrypoint[-1]) == ("20261130134500123456", "20261130134500123456")


def test_numbers_and_nesting_of_an_honest_size_are_read() -> None:
    assert read_yaml("a: [0xff, 0b11, 017, 1:30, 1_000, 2.0e+3, 1.5e-8, -7]") == {"a": [255, 3, 15, 90, 1000, 2000.0, 1.5e-8, -7]}
    deep = "a: " + "[" * (DEPTH_MAX - 2) + "1" + "]" * (DEPTH_MAX - 2)
    assert str(read_yaml(deep)).count("[") == DEPTH_MAX - 2
    with pytest.raises(yaml.YAMLError, match=f"at most {DEPTH_MAX} deep"):
        read_yaml("a: " + "[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX)


def test_a_month_that_does_not_exist_is_refused_by_field_in_jobs_and_policies(tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("name: x\nentrypoint: [a]\ndeadline: 2026-13-01\n")
    with pytest.raises(SpecError, match="UTC time") as of_job:
        load_spec(file)
    file.write_text("bookings: {b: {queue: q, devices: 'H100:8', start: 2026-13-01, end: 2026-12-02T00:00:00Z}}\n")
    with pytest.raises(SpecError, match="UTC time") as of_policy:
        load_policy(file)
    assert (of_job.value.field, of_policy.value.field) == ("deadline", "bookings.b.start")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"a: [", "is not valid YAML at line"),
        (b"\xff", "UTF-8"),
        (b"a: *b", "aliases"),
        (b"a: 1" + b" " * 2000, "keep it under 1 KiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(content: bytes, what: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=what) as caught:
        read_yaml_file(file, "--cluster", 1024)
    assert caught.value.value == str(file)
    with pytest.raises(SpecError, match="name an existing YAML file"):
        read_yaml_file(tmp_path / "none.yaml", "--cluster", 1024)
