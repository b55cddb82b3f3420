"""Facts to JSON and back: every message, event and view is a frozen dataclass, checked by pydantic when it comes in.

Unknown keys are dropped on purpose (an old agent may talk to a new server); job specs and what people ask for are strict instead,
see `spec` and `CLOSED`.
"""

from functools import cache
from typing import Any, Final

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_json

CLOSED: Final = ConfigDict(extra="forbid")
"""`__pydantic_config__` of the body of a request: a misspelt key, such as that of a dry run or of a token's team, must not be taken
for one that was left out."""


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def dumps(kind: Any, value: Any) -> str:
    """JSON text of `value`, one line. `kind` is a dataclass or a tagged union of them.

    JSON has no NaN: a float that is no number travels as 'NaN' or 'Infinity' and reads back as one.
    """
    return to_json(_adapter(kind).dump_python(value), inf_nan_mode="strings").decode()


def loads(kind: Any, text: str | bytes) -> Any:
    """Raises ValueError when `text` is not a `kind`; the message says where."""
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from error


def plain(kind: Any, value: Any) -> Any:
    """`value` as dicts, lists, strings and numbers, ready for JSON or YAML."""
    return _adapter(kind).dump_python(value, mode="json")


def build(kind: Any, data: object) -> Any:
    """The reverse of `plain`. Raises ValueError when `data` is not a `kind`."""
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as error:
        raise ValueError(_first_problem(error)) from error


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'message'}: {first['msg']}"
