"""What the types of requests and answers do not tell of themselves: limits that routes check, an example of each request, and
that a float which is no number travels as text."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter

from phalanx.core import curves, records, use_views, views
from phalanx.core.people import LIFETIME_MS_MAX
from phalanx.core.profile import TRACED_STEPS_MAX
from phalanx.core.spec import JobSpec
from phalanx.core.views import JOIN_TOKEN_MS
from phalanx.operate.control.asked import REASON_CHARS_MAX
from phalanx.operate.control.people.accounts import LIFETIME_MS_MIN, NAME_CHARS_MAX

REF: Final = "#/components/schemas/{model}"
_JOB: Final[Mapping[str, Any]] = {"name": "hello", "entrypoint": "python -c 'print(1)'", "resources": {"gpus": "1"}}
EXAMPLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "SubmitRequest": {"spec": _JOB, "key": "made-once-by-you"},
    "PlanRequest": {"spec": _JOB},
    "PolicyRequest": {"policy": {"queues": {"research": {"weight": 2.0}, "default": {}}}, "dry_run": True},
    "DrainRequest": {"reason": "a fan is replaced", "now": False},
    "HaltRequest": {"but": "node-a"},
    "JoinTokenRequest": {"lifetime_ms": 3_600_000},
    "JoinRequest": {"node": "node-b", "credential_sha256": "0" * 64},
    "GcRequest": {"older_than": "30d", "dry_run": True},
    "Asked": {"fault": "kill-rank", "rank": 0, "step": 40},
    "TracesAsked": {"steps": 5, "ranks": [0]},
    "OrganisationView": {"name": "Example Ltd"},
    "UserRequest": {"user": "ada", "platform": False},
    "TeamRequest": {"team": "research"},
    "MemberRequest": {"role": "member"},
    "TokenRequest": {"name": "laptop", "scope": "submit", "lifetime_ms": 86_400_000},
    "OidcLoginRequest": {"id_token": "header.payload.signature", "nonce": "as-GET-oidc-gave-it"},
    "QueueShareRequest": {"quota": {"H100": 8}, "weight": 2.0},
}
"""One of each body. The tests send them."""

_NAME: Final = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_RANK: Final[Mapping[str, Any]] = {"type": "integer", "minimum": 0, "maximum": 1_000_000}
_LIMITS: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "SubmitRequest": {
        "spec": {"$ref": REF.format(model="JobSpec")},
        "code": {"pattern": "^([0-9a-f]{64})?$"},
        "key": {"maxLength": 255},
    },
    "PlanRequest": {"spec": {"$ref": REF.format(model="JobSpec")}},
    "DrainRequest": {"reason": {"minLength": 1, "maxLength": REASON_CHARS_MAX}},
    "JoinTokenRequest": {"lifetime_ms": {"minimum": JOIN_TOKEN_MS[0], "maximum": JOIN_TOKEN_MS[1]}},
    "JoinRequest": {
        "node": {"pattern": f"^{_NAME}$"},
        "credential_sha256": {"pattern": "^[0-9a-f]{64}$"},
    },
    "GcRequest": {"older_than": {"pattern": "^[1-9][0-9]{0,3}[smhd]$"}},
    "TracesAsked": {"steps": {"minimum": 1, "maximum": TRACED_STEPS_MAX}, "ranks": {"items": _RANK, "uniqueItems": True}},
    "OrganisationView": {"name": {"minLength": 1, "maxLength": NAME_CHARS_MAX}},
    "UserRequest": {"user": {"pattern": f"^{_NAME}$"}},
    "TeamRequest": {"team": {"pattern": f"^{_NAME}$"}},
    "TokenRequest": {
        "name": {"minLength": 1, "maxLength": 64},
        "user": {"pattern": f"^({_NAME})?$"},
        "team": {"pattern": f"^({_NAME})?$"},
        "lifetime_ms": {"minimum": LIFETIME_MS_MIN, "maximum": LIFETIME_MS_MAX},
    },
}
_NUMBERS_TOO: Final = (
    ("JobSpec", "env"),
    ("JobSpec", "entrypoint"),
    ("Placing", "where"),
    ("Placing", "data"),
    ("Resources", "gpus"),
    ("Resources", "memory"),
    ("Resources", "gpu_memory"),
)
"""Fields of a job that are text, and may be written as numbers."""
_AS_TEXT: Final[Mapping[str, Any]] = {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]}


def complete(schemas: dict[str, Any]) -> None:
    """Adds to `schemas`, by name of the component."""
    spec = TypeAdapter(JobSpec).json_schema(ref_template=REF)
    schemas.update(spec.pop("$defs"))
    for kind, field in _NUMBERS_TOO:
        _allow_numbers((spec if kind == "JobSpec" else schemas[kind])["properties"][field])
    schemas["JobSpec"] = spec | {"additionalProperties": False, "examples": [dict(_JOB)], "description": "A job: docs/job-spec.md"}
    for name, of_fields in _LIMITS.items():
        for field, limits in of_fields.items():
            known = schemas[name]["properties"][field]
            schemas[name]["properties"][field] = dict(limits) if "$ref" in limits else known | limits
    for name, example in EXAMPLES.items():
        schemas[name]["examples"] = [dict(example)]
    for told in _told_as_text():
        for field in _floats(told):
            if told.__name__ in schemas:
                _allow_text(schemas[told.__name__]["properties"][field])


def _told_as_text() -> Iterator[type]:
    """Kinds whose floats may be no numbers."""
    modules: tuple[ModuleType, ...] = (views, use_views, records, curves)
    for kind in {one for module in modules for one in vars(module).values() if isinstance(one, type) and is_dataclass(one)}:
        if getattr(kind, "__pydantic_config__", {}).get("ser_json_inf_nan") == "strings":
            yield kind


def _floats(kind: type) -> list[str]:
    hints = get_type_hints(kind)
    return [one.name for one in fields(kind) if "float" in str(hints[one.name])]


def _allow_text(schema: dict[str, Any]) -> None:
    """Wherever in `schema` a number stands, one of the words may stand too."""
    for inner in [value for value in schema.values() if isinstance(value, dict)]:
        _allow_text(inner)
    for choice in [one for one in schema.get("anyOf", ()) if isinstance(one, dict)]:
        _allow_text(choice)
    if schema.get("type") == "number":
        schema["anyOf"] = [{"type": schema.pop("type")}, dict(_AS_TEXT)]


def _allow_numbers(schema: dict[str, Any]) -> None:
    """Wherever in `schema` text stands, below its own type or as it, a number may stand too."""
    inner = [schema.get("additionalProperties"), *(one.get("items") for one in schema.get("anyOf", ()))]
    for one in [part for part in inner if isinstance(part, dict)] or [schema]:
        one["type"] = ["string", "number"]
