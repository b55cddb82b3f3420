"""A job file with the changes of the command line laid over it."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml

from phalanx.core.errors import SpecError
from phalanx.core.spec import JobSpec
from phalanx.core.spec_parse import load_spec
from phalanx.core.training_data import place_from
from phalanx.core.yaml_text import read_yaml

_PATHS: Final = re.compile(r"workdir|data\.path|data\.sources\.[^.]+\.path")
"""Fields that are paths, or places in a store: paths of the command line start at the current folder, not at the file's."""
_INIT: Final = "hyperparameters.init"
"""Of a recipe; what a script means by it nobody knows."""


def spec_from(file: Path, changes: Sequence[str], folder: Path) -> JobSpec:
    """The spec in `file` after each 'key=value' of `changes`, in order. Raises SpecError."""
    return load_spec(file, change=partial(changed, changes=changes, folder=folder))


def changed(data: object, changes: Sequence[str], folder: Path) -> object:
    """`data` with dotted keys set. What is not a mapping is left for the parser to refuse."""
    if not isinstance(data, dict):
        return data
    for change in changes:
        key, value = _key_value(change)
        if (_PATHS.fullmatch(key) or (key == _INIT and data.get("recipe"))) and isinstance(value, str) and value:
            value = place_from(folder, value)
        data = _with(data, key.split("."), value, key)
    return data


def _key_value(change: str) -> tuple[str, Any]:
    key, equals, text = change.partition("=")
    if not equals or not all(key.split(".")):
        raise SpecError("--set", change, "write KEY=VALUE, with dots into nested fields, e.g. hyperparameters.steps=50")
    if key == "name":
        return key, text
    try:
        return key, read_yaml(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise SpecError(f"--set {key}", text, f"is not a YAML value: {getattr(error, 'problem', error)}") from error


def _with(data: dict[Any, Any], path: Sequence[str], value: object, key: str) -> dict[Any, Any]:
    """A copy of `data` with `value` at `path`, making the mappings on the way."""
    if len(path) == 1:
        return {**data, path[0]: value}
    inner = data.get(path[0]) or {}
    if not isinstance(inner, dict):
        raise SpecError(f"--set {key}", inner, f"{path[0]} is not a mapping here, so nothing can be set inside it")
    return {**data, path[0]: _with(inner, path[1:], value, key)}
