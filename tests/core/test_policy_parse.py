"""A policy file gets one clear error for the first thing that cannot be, and reads back as it was written."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.core import wire
from phalanx.core.errors import SpecError
from phalanx.core.policy import DEFAULT, Policy, Window
from phalanx.core.policy_parse import POLICY_BYTES_MAX, dump_policy, load_policy, parse_policy
from phalanx.core.policy_rules import guaranteed
from phalanx.core.week import minutes, weekdays

WHOLE = """
order: fair
half_life: 3d
heads: 2
classes:
  low: {priority: 0}
  urgent: {priority: 90, wait_target: 5m}
queues:
  org: {quota: {H100: 64}, limit: {H100: 96, '*': 200}}
  nlp: {parent: org, weight: 2, quota: {H100: 32}, budget: {gpu_hours: 1000, money: 5000.5, period: week, at: warn}}
  vision: {parent: org, borrow: false, lend: false}
  racks: {cells: {type: A100-80, count: 4, tier: rack}}
preemption: {min_runtime: 5m, max_victims: 8}
bookings:
  demo: {queue: nlp, devices: 'H100:16', start: 2026-12-01T09:00Z, end: 2026-12-01T12:00:00Z}
windows:
  nights: {hours: '20:00-06:00'}
  off: [{days: 'sat,sun'}, {days: mon-fri, hours: '18:00-08:00'}]
spares: {H100: 1}
packing: expected_idle
health: {stragglers: quarantine}
nodes:
  - {match: 'gpu-0*', labels: {rack: 7, domain: a}, price: 2.5}
  - {match: 'spot-*', spot: true}
"""


def test_a_whole_policy_is_read_and_written_back(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(WHOLE)
    policy = load_policy(tmp_path / "policy.yaml")
    assert policy.queues["nlp"].budget is not None
    assert (policy.queues["nlp"].weight, policy.queues["nlp"].budget.money, policy.half_life_ms) == (2.0, 5000.5, 259_200_000)
    assert policy.nodes[0].labels == {"rack": "7", "domain": "a"}
    assert policy.windows["nights"] == (Window(hours="20:00-06:00"),)
    assert policy.bookings["demo"].end == "2026-12-01T12:00:00Z"
    written = dump_policy(policy)
    assert parse_policy(written) == policy
    assert parse_policy(yaml.safe_load(yaml.safe_dump(written))) == policy
    assert wire.loads(Policy, wire.dumps(Policy, policy)) == policy
    assert written["queues"]["vision"] == {"parent": "org", "borrow": False, "lend": False}, "what is as by default is left out"


def test_a_policy_can_be_written_with_every_field(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(WHOLE)
    for policy in (DEFAULT, load_policy(tmp_path / "policy.yaml")):
        written = dump_policy(policy, whole=True)
        assert parse_policy(yaml.safe_load(yaml.safe_dump(written))) == policy
        assert set(written) == {item.name for item in dataclasses.fields(Policy)}
    assert dump_policy(DEFAULT, whole=True)["preemption"]["max_victims"] == 64


def test_the_default_policy_is_empty() -> None:
    assert parse_policy({}) == DEFAULT
    assert dump_policy(DEFAULT) == {}
    assert dump_policy(parse_policy({"classes": {}})) == {"classes": {}}, "no classes is not the default classes"


CELLS = {"type": "H100", "count": 1}
NAN, INF = float("nan"), float("inf")


def queue(**fields: Any) -> dict[str, Any]:
    return {"queues": {"a": fields}}


def org(parent: dict[str, Any], *quotas: dict[str, int]) -> dict[str, Any]:
    children = {f"t{number}": {"parent": "o", "quota": quota} for number, quota in enumerate(quotas)}
    return {"queues": {"o": parent, **children}}


@pytest.mark.parametrize(
    ("data", "field", "words"),
    [
        ([], "policy", "mapping of fields"),
        ({"oder": "fair"}, "oder", "did you mean 'order'"),
        ({"zzz": 1}, "zzz", "known are order"),
        ({3: 1}, "3", "keys as text"),
        (queue(qouta={"H100": 1}), "queues.a.qouta", "did you mean 'quota'"),
        (queue(budget={"gpu_hour": 1}), "queues.a.budget.gpu_hour", "did you mean 'gpu_hours'"),
        (queue(cells={"type": "H100", "count": 1, "teir": "node"}), "queues.a.cells.teir", "did you mean 'tier'"),
        ({"classes": {"x": {"prio": 1}}}, "classes.x.prio", "did you mean 'priority'"),
        ({"preemption": {"enable": True}}, "preemption.enable", "did you mean 'enabled'"),
        ({"bookings": {"x": {"que": "a"}}}, "bookings.x.que", "did you mean 'queue'"),
        ({"windows": {"n": [{"day": "all"}]}}, "windows.n.0.day", "did you mean 'days'"),
        ({"nodes": [{"mach": "*"}]}, "nodes.0.mach", "did you mean 'match'"),
        ({"order": "fare"}, "order", "'fair'"),
        ({"order": None}, "order", "'fair'"),
        ({"heads": "many"}, "heads", "whole number"),
        ({"heads": 1.5}, "heads", "whole number"),
        ({"heads": True}, "heads", "true and false"),
        ({"heads": -1}, "heads", "0 to 1000"),
        ({"queues": None}, "queues", "mapping"),
        ({"queues": ["a"]}, "queues", "mapping"),
        ({"queues": {"a": 3}}, "queues.a", "mapping of its fields"),
        ({"queues": {"A_b": {}}}, "queues.A_b", "lower-case"),
        ({"queues": {"": {}}}, "queues.", "lower-case"),
        (queue(weight=0), "queues.a.weight", "above 0"),
        (queue(weight=-1.0), "queues.a.weight", "above 0"),
        (queue(weight=NAN), "queues.a.weight", "above 0"),
        (queue(weight=INF), "queues.a.weight", "above 0"),
        (queue(quota={"H100": -1}), "queues.a.quota.H100", "0 to"),
        (queue(quota={"H100": 10**12}), "queues.a.quota.H100", "0 to"),
        (queue(quota={"H100": 1.5}), "queues.a.quota.H100", "whole number"),
        (queue(quota={"H100:8": 8}), "queues.a.quota.H100:8", "device type"),
        (queue(limit={"": 8}), "queues.a.limit.", "device type"),
        (queue(quota={"H100": 9}, limit={"H100": 8}), "queues.a.quota.H100", "limit of 8"),
        (queue(quota={"H100": 9}, limit={"*": 8}), "queues.a.quota.H100", "limit of 8"),
        (queue(borrow="maybe"), "queues.a.borrow", "true or false"),
        (queue(parent="b"), "queues.a.parent", "is no queue"),
        (queue(parent="a"), "queues.a.parent", "circle: a -> a"),
        (
            {"queues": {"a": {"parent": "b"}, "b": {"parent": "c"}, "c": {"parent": "b"}}},
            "queues.a.parent",
            "circle: b -> c -> b",
        ),
        (
            org({"limit": {"H100": 8}}, {"H100": 5}, {"H100": 4}),
            "queues.o.limit.H100",
            "less than the 9 guaranteed",
        ),
        (
            org({"quota": {"*": 8}}, {"H100": 5}, {"A100": 4}),
            "queues.o.quota.*",
            "less than the 9 guaranteed",
        ),
        (queue(budget={}), "queues.a.budget", "gpu_hours, money or both"),
        (queue(budget={"money": -5}), "queues.a.budget.money", "0 to 1,000,000,000,000"),
        (queue(budget={"gpu_hours": NAN}), "queues.a.budget.gpu_hours", "0 to 1,000,000,000,000"),
        (queue(budget={"money": 1, "period": "year"}), "queues.a.budget.period", "'day'"),
        (
            {"queues": {"o": {"budget": {"money": 1}}, "a": {"parent": "o", "budget": {"money": 1, "period": "day"}}}},
            "queues.a.budget.period",
            "not that of o",
        ),
        (queue(cells={"type": "H100", "count": 0}), "queues.a.cells.count", "1 to"),
        (queue(cells={"type": "H100", "count": 1, "tier": "row"}), "queues.a.cells.tier", "'node'"),
        (queue(cells={"type": "H100", "count": 1}, quota={"H100": 8}), "queues.a.cells", "one of the two"),
        (
            {"queues": {"o": {"cells": CELLS}, "m": {"parent": "o"}, "a": {"parent": "m", "cells": CELLS}}},
            "queues.a.cells",
            "o, which it is part of, has cells",
        ),
        (
            {"queues": {"o": {"quota": {"H100": 8}}, "a": {"parent": "o", "cells": CELLS}}},
            "queues.a.cells",
            "o, which it is part of, has a quota",
        ),
        ({"half_life": "7 days"}, "half_life", "'30m'"),
        ({"half_life": 7}, "half_life", "with its unit: 7s, 7m, 7h or 7d"),
        ({"preemption": {"min_runtime": 2}}, "preemption.min_runtime", "2s, 2m, 2h or 2d"),
        ({"classes": {"x": {"priority": 1, "wait_target": 5}}}, "classes.x.wait_target", "5m"),
        (queue(quota=2), "queues.a.quota", "{'*': 2}"),
        ({"spares": 1}, "spares", "{'H100': 1}"),
        ({"health": "tell"}, "health", "write {stragglers: tell}"),
        ({"health": {"straglers": "tell"}}, "health.straglers", "did you mean 'stragglers'"),
        ({"health": {"corruption": "kill"}}, "health.corruption", "'tell' or 'quarantine'"),
        ({"preemption": "off"}, "preemption", "write {enabled: false}"),
        ({"preemption": False}, "preemption", "write {enabled: false}"),
        (queue(weight="1.0e300"), "queues.a.weight", "at most 1000000"),
        (queue(weight="1e3"), "queues.a.weight", "YAML reads it as text; write 1.0e+3"),
        (queue(weight="2.5e-1"), "queues.a.weight", "write 2.5e-1"),
        ({"preemption": {"enabled": "on"}}, "preemption.enabled", "true or false"),
        (queue(borrow="no"), "queues.a.borrow", "true or false"),
        ({"backfill": 1}, "backfill", "true or false"),
        (queue(quota={"*": "2"}), "queues.a.quota.*", "a number, without quotes"),
        (queue(weight="2"), "queues.a.weight", "a number, without quotes"),
        (queue(weight=True), "queues.a.weight", "true and false are none"),
        ({"nodes": [{"match": "*"}, {"match": "*", "spot": "yes"}]}, "nodes.1.spot", "true or false"),
        ({"queues": {"b": {}}, "bookings": {"x": {"queue": "a", "devices": "H100:1", "start": "2026-12-01T09:00Z",
          "end": "2026-12-02T09:00Z"}}}, "bookings.x.queue", "is no queue"),
        ({"half_life": "0s"}, "half_life", "above 0s"),
        ({"half_life": "999999d"}, "half_life", "at most 3650d"),
        ({"spot_fallback": "soon"}, "spot_fallback", "'30m'"),
        ({"packing": "loose"}, "packing", "'tight' or 'expected_idle'"),
        ({"preemption": {"min_runtime": "-1m"}}, "preemption.min_runtime", "'30m'"),
        ({"preemption": {"max_victims": 0}}, "preemption.max_victims", "1 to"),
        ({"preemption": {"max_evictions": -1}}, "preemption.max_evictions", "0 to"),
        ({"preemption": {"max_evictions": 65}}, "preemption.max_evictions", "0 to 64"),
        ({"queues": {f"q{n}": {} for n in range(1_001)}}, "queues", "at most 1000"),
        ({"nodes": [{"match": "*"}] * 5_001}, "nodes", "at most 5000"),
        ({"queues": {"q0": {}, **{f"q{n}": {"parent": f"q{n - 1}"} for n in range(1, 1_000)}}}, "queues.q16.parent", "too deep"),
        ({"classes": {"x": {}}}, "classes.x.priority", "required"),
        ({"classes": {"x": {"priority": 101}}}, "classes.x.priority", "0 to 100"),
        ({"classes": {"x": {"priority": 1, "wait_target": "5"}}}, "classes.x.wait_target", "'30m'"),
        ({"classes": {"x": {"priority": 1}, "y": {"priority": 1}}}, "classes.y.priority", "is that of x"),
        ({"windows": {"n": [{"days": "monday"}]}}, "windows.n.0.days", "'mon-fri'"),
        ({"windows": {"n": [{}, {"hours": "20-06"}]}}, "windows.n.1.hours", "'20:00-06:00'"),
        ({"windows": {"n": {"hours": "20:00-20:00"}}}, "windows.n.0.hours", "'00:00-24:00'"),
        ({"windows": {"n": {"hours": "24:00-25:00"}}}, "windows.n.0.hours", "'00:00-24:00'"),
        ({"windows": {"n": []}}, "windows.n", "never open"),
        ({"spares": {"H100": -1}}, "spares.H100", "0 to"),
        ({"spares": {"*": 1}}, "spares.*", "names no type, so it would keep nothing"),
        ({"region": "Europe West"}, "region", "lower-case"),
        ({"region": 1}, "region", "write text"),
        ({"nodes": [{"match": ""}]}, "nodes.0.match", "glob"),
        ({"nodes": [{"match": "*", "price": -1}]}, "nodes.0.price", "0 to 1,000,000,000,000"),
        ({"nodes": [{"match": "*", "price": INF}]}, "nodes.0.price", "0 to 1,000,000,000,000"),
        ({"nodes": [{"match": "*", "labels": {"rack": ""}}]}, "nodes.0.labels.rack", "a value"),
        ({"nodes": {"match": "*"}}, "nodes", "a list"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(data: Any, field: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_policy(data)
    assert (caught.value.field, words in caught.value.fix) == (field, True), caught.value.sentence()


BOOKING = {"queue": "a", "devices": "H100:8", "start": "2026-12-01T09:00Z", "end": "2026-12-02T09:00Z"}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"end": "2026-12-01T09:00Z"}, "end", "not after its start"),
        ({"end": "2026-11-01T09:00Z"}, "end", "not after its start"),
        ({"start": "2026-12-01"}, "start", "UTC time"),
        ({"start": "2026-12-01T09:00"}, "start", "UTC time"),
        ({"start": "tomorrow"}, "start", "UTC time"),
        ({"devices": "H100|A100:8"}, "devices", "'H100:64'"),
        ({"devices": "0.5"}, "devices", "'H100:64'"),
        ({"devices": "all"}, "devices", "'H100:64'"),
        ({"devices": "8"}, "devices", "names no type, so it would keep nothing; write TYPE:8, such as 'H100:64'"),
        ({"queue": "A b"}, "queue", "lower-case"),
    ],
)
def test_a_booking_that_cannot_be(change: dict[str, str], field: str, words: str) -> None:
    assert parse_policy({"bookings": {"x": BOOKING}}).bookings["x"].devices == "H100:8"
    with pytest.raises(SpecError) as caught:
        parse_policy({"bookings": {"x": {**BOOKING, **change}}})
    assert (caught.value.field, words in caught.value.fix) == (f"bookings.x.{field}", True), caught.value.sentence()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("- a", "mapping of fields"),
        ("a: [", "not valid YAML"),
        ("queues: {a: {}, a: {}}", "stands twice"),
        ("#" * (POLICY_BYTES_MAX + 1), "keep it under"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        load_policy(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        load_policy(tmp_path / "absent.yaml")
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(SpecError, match="UTF-8"):
        load_policy(tmp_path / "latin")


def test_days_and_hours() -> None:
    assert weekdays("mon-fri") == {0, 1, 2, 3, 4}
    assert weekdays("fri-mon, wed") == {4, 5, 6, 0, 2}
    assert weekdays("sun") == {6}
    assert weekdays("all") == set(range(7))
    assert minutes("00:00-24:00") == (0, 1440)
    assert minutes("20:00-06:30") == (1200, 1830)
    for bad in ("", "mon-tue-wed", "mon,", "Mon"):
        with pytest.raises(ValueError, match="write days"):
            weekdays(bad)
    for bad in ("", "8:00-9:00", "08:60-09:00", "24:00-01:00", "01:00-24:01", "08:00 - 09:00"):
        with pytest.raises(ValueError, match="write hours"):
            minutes(bad)


def test_a_parents_guarantee_covers_its_children() -> None:
    children = {"a": {"parent": "o", "quota": {"H100": 4}}, "b": {"parent": "o", "quota": {"H100": 2, "T4": 1}}}
    assert guaranteed(parse_policy({"queues": {"o": {"quota": {"H100": 8}}, **children}}), "o") == {"H100": 8, "T4": 1}
    assert guaranteed(parse_policy({"queues": {"o": {}, **children}}), "o") == {"H100": 6, "T4": 1}
    assert guaranteed(parse_policy({"queues": {"o": {"quota": {"*": 9}}, **children}}), "o") == {"*": 9}
