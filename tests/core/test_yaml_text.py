"""YAML as people hand it in: whatever is wrong is one error with its line, and dates stay texts."""

from pathlib import Path

import pytest
import yaml

from phalanx.core.errors import SpecError
from phalanx.core.policy_parse import load_policy
from phalanx.core.spec_parse import load_spec
from phalanx.core.yaml_text import read_yaml, read_yaml_file


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
