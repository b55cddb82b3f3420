"""Untrusted data to a `Policy`: every problem becomes one `SpecError` that names the field, the value and what to change.

What is checked here needs no fleet; what does is in `decide.scheduler.policy_checks`.
"""

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from phalanx.core.errors import SpecError
from phalanx.core.policy import ANY, Booking, Budget, Cells, Health, JobClass, NodeRule, Policy, Preemption, Queue, Window
from phalanx.core.policy_rules import problems
from phalanx.core.validation import misread, value_of, what_to_write, with_unit
from phalanx.core.yaml_text import read_yaml_file

POLICY_BYTES_MAX: Final = 1024 * 1024
_MAPPING: Final = "write a mapping of fields, such as queues: {...}"
_DURATIONS: Final = frozenset({"half_life", "spot_fallback", "min_runtime", "wait_target"})
_COUNTS: Final = {"quota": ANY, "limit": ANY, "spares": "H100"}
"""Fields that are mappings of device types to numbers, and such a type."""
_NAMED: Final = {"queues": Queue, "classes": JobClass, "bookings": Booking, "windows": Window}
"""Fields that are mappings of names to these."""


def load_policy(path: Path) -> Policy:
    """The policy in a YAML file. Raises SpecError for an unreadable file, malformed YAML, or any unacceptable field."""
    data = read_yaml_file(path, "policy file", POLICY_BYTES_MAX)
    if data is None:
        raise SpecError("policy file", str(path), "is empty; write {} for the default policy")
    return parse_policy(data)


def parse_policy(data: object) -> Policy:
    """Raises SpecError for the first problem found."""
    if not isinstance(data, Mapping):
        raise SpecError("policy", data, _MAPPING)
    for name, key, _ in _entries(data, ""):
        if not isinstance(key, str):
            raise SpecError(name, key, "write keys as text; put numbers, true and false in quotes")
    normal = _normal(data)
    try:
        policy: Policy = _ADAPTER.validate_python(normal)
    except ValidationError as error:
        raise _spec_error(error) from error
    checked(policy)  # first: of a number that is too large and was read as text, the bound says more
    for name, value, fix in misread(normal, policy, ""):
        raise SpecError(name, value, fix)
    return policy


def checked(policy: Policy) -> Policy:
    """`policy` itself when its values can work together; raises SpecError for the first that cannot."""
    for name, value, fix in problems(policy):
        raise SpecError(name, value, fix)
    return policy


def dump_policy(policy: Policy, whole: bool = False) -> dict[str, Any]:
    """The reverse of `parse_policy`, as mappings, lists, texts and numbers. What is as by default is left out, but not of a `whole`
    one, where only what has no value is."""
    found: dict[str, Any] = _lean(policy, whole)
    return found


def _lean(value: Any, whole: bool) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(item, getattr(value, item.name)) for item in dataclasses.fields(value)]
        return {
            item.name: _lean(part, whole) for item, part in parts if part is not None and (whole or not _is_default(item, part))
        }
    if isinstance(value, Mapping):
        return {key: _lean(part, whole) for key, part in value.items()}
    return [_lean(part, whole) for part in value] if isinstance(value, tuple) else value


def _is_default(item: "dataclasses.Field[Any]", value: object) -> bool:
    if item.default_factory is not dataclasses.MISSING:
        return bool(value == item.default_factory())
    return item.default is not dataclasses.MISSING and bool(value == item.default)


def _entries(data: object, at: str) -> Iterator[tuple[str, object, object]]:
    """(dotted name, key, value) of all mappings in it."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            name = f"{at}.{key}" if at else str(key)
            yield name, key, value
            yield from _entries(value, name)
    elif isinstance(data, list | tuple):
        for number, value in enumerate(data):
            yield from _entries(value, f"{at}.{number}")


def _normal(data: Mapping[Any, Any]) -> dict[Any, Any]:
    """YAML has lists, and reads labels and counts as other things than text."""
    normal = dict(data)
    if isinstance(normal.get("nodes"), list):
        normal["nodes"] = tuple(_with_text_labels(rule) for rule in normal["nodes"])
    if isinstance(normal.get("windows"), Mapping):
        normal["windows"] = {name: _as_tuple(part) for name, part in normal["windows"].items()}
    if isinstance(normal.get("bookings"), Mapping):
        normal["bookings"] = {name: _with_text_devices(part) for name, part in normal["bookings"].items()}
    return normal


def _as_tuple(windows: object) -> object:
    """One window may be written without a list."""
    return (windows,) if isinstance(windows, Mapping) else tuple(windows) if isinstance(windows, list) else windows


def _with_text_labels(rule: object) -> object:
    if not isinstance(rule, Mapping) or not isinstance(rule.get("labels"), Mapping):
        return rule
    labels = {key: str(value) if type(value) in (int, float) else value for key, value in rule["labels"].items()}
    return {**rule, "labels": labels}


def _with_text_devices(booking: object) -> object:
    if not isinstance(booking, Mapping):
        return booking
    count = booking.get("devices")
    return {**booking, "devices": str(count)} if type(count) is int else booking


def _spec_error(error: ValidationError) -> SpecError:
    first = min(error.errors(include_url=False), key=lambda problem: problem["type"] != "unexpected_keyword_argument")
    where = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-", "tuple["))]
    name = ".".join(where) or "policy"
    if first["type"] == "unexpected_keyword_argument":
        return SpecError(name, first["input"], _nearest(where[-1], _keys_beside(where)))
    return SpecError(name, value_of(first), _form(where, first) or what_to_write(first))


def _form(where: list[str], problem: Mapping[str, Any]) -> str:
    """What to write for a text or a mapping that has its own form, where a number or a word stands; '' elsewhere."""
    value = problem["input"]
    if where == ["preemption"] and not isinstance(value, Mapping):
        return "write {enabled: false} to switch it off, or {enabled: true}"
    if where == ["health"] and not isinstance(value, Mapping):
        return "write {stragglers: tell} or {stragglers: quarantine}"
    if type(value) not in (int, float):
        return ""
    if where[-1] in _DURATIONS:
        return with_unit(problem)
    return f"write devices by type, such as {{{_COUNTS[where[-1]]!r}: {value}}}" if where[-1] in _COUNTS else ""


def _keys_beside(where: list[str]) -> list[str]:
    """The right keys where an unknown one was written."""
    match where:
        case [_]:
            owner: Any = Policy
        case ["queues", _, "budget", _]:
            owner = Budget
        case ["queues", _, "cells", _]:
            owner = Cells
        case ["preemption", _]:
            owner = Preemption
        case ["health", _]:
            owner = Health
        case ["nodes", *_]:
            owner = NodeRule
        case _:
            owner = _NAMED[where[0]]
    return [item.name for item in dataclasses.fields(owner)]


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"unknown key; did you mean {near[0]!r}?" if near else f"unknown key; known are {', '.join(known)}"


_ADAPTER: Final = TypeAdapter(Policy)
