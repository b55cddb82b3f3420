"""What Pydantic found wrong, as one of our sentences: what to write instead. For job files, requests and options alike."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_WRITE: Final[Mapping[str, str]] = {
    "string_type": "text; put numbers, true and false in quotes",
    "tuple_type": "a list, such as [a, b]",
    "list_type": "a list, such as [a, b]",
    "dict_type": "a mapping, such as {key: value}",
    "mapping_type": "a mapping, such as {key: value}",
    "dataclass_type": "a mapping of its fields, such as {field: value}",
    "invalid_key": "keys as text; put numbers, true and false in quotes",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "json_invalid": "valid JSON",
}
_EXPONENT: Final = re.compile(r"([+-]?[0-9]+)(\.[0-9]*)?[eE]([+-]?)([0-9]+)")
_BOUNDS: Final[Mapping[str, str]] = {
    "greater_than_equal": "{ge} or more",
    "greater_than": "more than {gt}",
    "less_than_equal": "{le} or less",
    "less_than": "less than {lt}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "at least {min_length} characters",
    "literal_error": "{expected}",
    "enum": "{expected}",
}


def what_to_write(problem: Mapping[str, Any]) -> str:
    """One of `ValidationError.errors()` as what to change. Kinds that are not named here keep Pydantic's own words."""
    kind, context = problem["type"], problem.get("ctx", {})
    if kind in ("missing", "missing_argument"):
        return "is required; write it"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return "is no key of this; take it out, or write it as the documentation has it"
    if kind in _WRITE:
        return f"write {_WRITE[kind]}"
    if kind in _BOUNDS:
        return f"write {_BOUNDS[kind].format(**context)}"
    said = str(problem["msg"]).removeprefix("Value error, ")
    return said[:1].lower() + said[1:]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of untrusted data. values: numbers, texts, keys, lists and mappings in all. chars: of all texts and keys. bits: of a whole
    number."""

    depth: int
    values: int
    chars: int
    bits: int = 64


def beyond(data: object, bounds: Bounds) -> tuple[str, object, str] | None:
    """(field, what it has, what to write) of the first thing that is too much; None where nothing is. Pydantic's time and ours grow
    with what is given, and so do its errors. Looks no further than the bounds."""
    values = chars = 0
    waiting: list[tuple[str, object, int]] = [("", data, 0)]
    while waiting:
        at, one, depth = waiting.pop()
        values += 1
        if values > bounds.values:
            return "", f"(over {bounds.values:,} values)", f"write at most {bounds.values:,} values in all"
        if isinstance(one, str):
            chars += len(one)
            if chars > bounds.chars:
                return at, f"(over {bounds.chars:,} characters)", f"write at most {bounds.chars:,} characters in all"
        elif isinstance(one, int) and one.bit_length() > bounds.bits:
            return at, f"(a number of {one.bit_length()} bits)", f"write a whole number of at most {bounds.bits} bits"
        elif isinstance(one, Mapping | list | tuple):
            if depth == bounds.depth:
                return at, "(one more level)", f"write at most {bounds.depth} levels of mappings and lists"
            waiting += _inside(at, one, depth + 1)
    return None


def _inside(at: str, data: "Mapping[Any, Any] | list[Any] | tuple[Any, ...]", depth: int) -> Iterator[tuple[str, object, int]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield at, key, depth
            yield (f"{at}.{key}" if at else str(key))[:_AT_CHARS_MAX], value, depth
    else:
        yield from ((at, value, depth) for value in data)


_AT_CHARS_MAX: Final = 200


def with_unit(problem: Mapping[str, Any]) -> str:
    """What to write for a duration that was given as a number; '' when something else was."""
    value = problem["input"]
    return f"write a duration with its unit: {value}s, {value}m, {value}h or {value}d" if type(value) in (int, float) else ""


def value_of(problem: Mapping[str, Any]) -> object:
    """What was given. YAML's null is named: a field without a value would look as if no value were shown."""
    if problem["type"] in ("missing", "missing_argument"):
        return "(missing)"
    value = problem.get("input", "")
    return "null" if value is None else value


def misread(data: object, read: object, at: str) -> Iterator[tuple[str, object, str]]:
    """(field, value, what to write) where Pydantic took a word for a number or for true and false, or these for each other."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            part = read[key] if isinstance(read, Mapping) else getattr(read, key)
            yield from misread(value, part, f"{at}.{key}" if at else key)
    elif isinstance(data, list | tuple) and isinstance(read, tuple):
        for number, (value, part) in enumerate(zip(data, read, strict=True)):
            yield from misread(value, part, f"{at}.{number}")
    elif isinstance(read, bool):
        if not isinstance(data, bool):
            yield at, data, "write true or false"
    elif isinstance(read, int | float) and isinstance(data, bool):
        yield at, data, "write a number; true and false are none"
    elif isinstance(read, int | float) and not isinstance(data, int | float):
        yield at, data, _as_number(data)


def _as_number(data: object) -> str:
    """YAML takes an exponent only with a point and a sign: without these it is text, and has no quotes to take away."""
    matched = _EXPONENT.fullmatch(data) if isinstance(data, str) else None
    if matched is None:
        return "write a number, without quotes"
    return f"YAML reads it as text; write {matched[1]}{matched[2] or '.0'}e{matched[3] or '+'}{matched[4]}"
