"""docs/scheduling.md names every field of a policy once, and its examples are policies."""

import dataclasses
import re
from pathlib import Path

import pytest

from phalanx.core.policy import Booking, Budget, Cells, Health, JobClass, NodeRule, Policy, Preemption, Queue, Window
from phalanx.core.policy_parse import load_policy, parse_policy
from phalanx.core.spec_parse import load_spec
from phalanx.core.yaml_text import read_yaml

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "scheduling.md").read_text(encoding="utf-8").partition("## The policy file")[2].partition("\n## ")[0]
ROWS = [line for line in TEXT.splitlines() if line.startswith("| `")]
OF = {
    "": Policy,
    "classes.NAME": JobClass,
    "queues.NAME": Queue,
    "queues.NAME.budget": Budget,
    "queues.NAME.cells": Cells,
    "preemption": Preemption,
    "bookings.NAME": Booking,
    "windows.NAME": Window,
    "nodes": NodeRule,
    "health": Health,
}


@pytest.mark.parametrize("at", OF)
def test_every_field_is_described(at: str) -> None:
    rows = [row.split("|")[1] for row in ROWS] if not at else [row for row in ROWS if row.startswith((f"| `{at}`", f"| `{at}."))]
    said = {word for row in rows for name in re.findall("`([^`]+)`", row) for word in re.split("[^a-z_]+", name)}
    assert {one.name for one in dataclasses.fields(OF[at])} - said == set()


def test_no_field_has_two_rows() -> None:
    names = [name for row in ROWS for name in re.findall("`([^`]+)`", row.split("|")[1])]
    assert len(names) == len(set(names))


def test_the_example_in_the_text_is_a_policy_with_every_part() -> None:
    policy = parse_policy(read_yaml(TEXT.partition("```yaml\n")[2].partition("```")[0]))
    assert all(getattr(policy, part) for part in ("queues", "classes", "bookings", "windows", "spares", "nodes"))


def test_the_example_of_a_policy_and_a_job_can_be_read() -> None:
    folder = ROOT / "examples" / "sharing"
    assert load_spec(folder / "job.yaml").queue in load_policy(folder / "policy.yaml").queues
