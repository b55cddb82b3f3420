"""Untrusted data to a `JobSpec`: every problem becomes one `SpecError` that names the field, the value and what to change."""

import dataclasses
import difflib
import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import TypeAdapter, ValidationError

from phalanx.core.devices import parse_devices
from phalanx.core.errors import SpecError
from phalanx.core.ids import NAME
from phalanx.core.lock_file import checked_lock, kind_of
from phalanx.core.recipe import RECIPES, reads_images, written_out
from phalanx.core.spec import (
    Array,
    CheckpointPolicy,
    Environment,
    JobSpec,
    LayoutSpec,
    Notify,
    Placing,
    ProfileSpec,
    Recovery,
    Resources,
)
from phalanx.core.spec_checkpoint import checkpoint_checks
from phalanx.core.spec_data import data_checks, image_checks, refuse_unprepared
from phalanx.core.spec_layout import layout_checks
from phalanx.core.spec_profile import check_within, profile_checks
from phalanx.core.spec_recovery import recovery_checks
from phalanx.core.spec_session import session_checks
from phalanx.core.spec_sharing import Check, parsed, sharing_checks
from phalanx.core.training_data import Blocks, DataCache, DataSource, MixtureSource, WeightChange
from phalanx.core.validation import Bounds, beyond, misread, value_of, what_to_write, with_unit
from phalanx.core.yaml_text import read_yaml_file

SPEC_BYTES_MAX: Final = 256 * 1024
BOUNDS: Final = Bounds(depth=16, values=70_000, chars=2 * SPEC_BYTES_MAX, bits=512)
"""Of a spec, however it came, before anything is made of it. Twice what a file may have: a client sends it with all that was left
out. Numbers may be text in the end: a run's number that is a date and a time has more than 64 bits."""
WEBHOOK_CHARS_MAX: Final = 1_000
CPUS_MAX: Final = 1_000_000
"""Cores of a node's part; far beyond any machine."""
_SHELL: Final = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>&1"})
"""Words that only mean something to a shell."""
_OURS_TO_SET: Final = ("PHALANX_FAULT", "PHALANX_CHECKPOINT_PATIENCE_S", "PHALANX_CHECKPOINT_REQUEST_S")
_ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IMAGE: Final = re.compile(r"/?[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,254}")
"""Begins with no '-', so it is never read as an option of a container tool."""
_NESTED: Final = {
    "resources": Resources,
    "environment": Environment,
    "checkpoint": CheckpointPolicy,
    "recovery": Recovery,
    "layout": LayoutSpec,
    "data": DataSource,
    "notify": Notify,
    "placing": Placing,
    "array": Array,
    "profile": ProfileSpec,
}
_AMOUNTS: Final = ("gpus", "memory", "gpu_memory")
_MAPPING: Final = "write a mapping of fields, starting with name: ..."


def load_spec(path: Path | str, change: Callable[[object], object] = lambda data: data) -> JobSpec:
    """The spec in a YAML file. Relative `workdir`, paths of `data` and `init` are taken from the file's folder.

    change: made to the file's data before it is checked, e.g. by `submit --set`.
    Raises SpecError for an unreadable file, malformed YAML, any unacceptable field, or data that was not prepared.
    """
    path = Path(path)
    data = read_yaml_file(path, "job file", SPEC_BYTES_MAX)
    if not isinstance(data, dict):
        what = "is empty" if data is None else "holds a list" if isinstance(data, list) else "holds a single value"
        raise SpecError("job file", str(path), f"{what}; {_MAPPING}")
    spec = anchored(parse_spec(change(data)), path.parent)
    if spec.data:
        refuse_unprepared(spec.data)
    if spec.environment.lock:
        absent = "is no file in workdir; make it there, or name the one that is"
        checked_lock(spec.environment.lock, lambda name: _file_in(Path(spec.workdir), name), absent)
    return spec


def _file_in(workdir: Path, name: str) -> bytes | None:
    path = workdir / name
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        raise SpecError("environment.lock", str(path), f"cannot be read ({error.strerror}); give this user the right to") from error


def anchored(spec: JobSpec, folder: Path) -> JobSpec:
    """`spec` with relative `workdir`, paths of `data` and a recipe's `init` made absolute from `folder`."""
    workdir = str((folder / spec.workdir).resolve()) if spec.workdir else ""
    data = spec.data.anchored(folder) if spec.data else None
    given, init = spec.hyperparameters, spec.hyperparameters.get("init")
    if spec.recipe and init:
        given = {**given, "init": str((folder / str(init)).resolve())}
    return dataclasses.replace(spec, workdir=workdir, data=data, hyperparameters=given)


def parse_spec(data: object) -> JobSpec:
    """Raises SpecError for the first problem found."""
    if not isinstance(data, dict):
        raise SpecError("job", data, _MAPPING)
    if (much := beyond(data, BOUNDS)) is not None:
        raise SpecError(much[0] or "job", *much[1:])
    normal = _normal(data)
    try:
        spec: JobSpec = _ADAPTER.validate_python(normal)
    except ValidationError as error:
        raise _spec_error(error) from error
    checked(spec)  # first: of a number that is too large and was read as text, the bound says more
    for name, value, fix in misread(normal, spec, ""):
        raise SpecError(name, value, fix)
    return spec


def checked(spec: JobSpec) -> JobSpec:
    """`spec` itself when its values can work together; raises SpecError for the first that cannot."""
    _refuse_unwritable(spec)
    checks = (
        _field_checks, _pair_checks, data_checks, checkpoint_checks, sharing_checks, layout_checks, recovery_checks,
        profile_checks, session_checks, _environment_checks, _outside_checks,
    )  # fmt: skip
    for check in checks:
        for name, value, good, fix in check(spec):
            if not good:
                raise SpecError(name, value, fix)
    if spec.recipe:
        check_within(spec, recipe_config(spec).steps)
    return spec


def recipe_config(spec: JobSpec) -> Any:
    """The recipe's typed configuration. Raises SpecError for an unknown or impossible hyperparameter."""
    kind = RECIPES[spec.recipe]
    try:
        config = TypeAdapter(kind).validate_python(written_out(spec.hyperparameters, spec.recipe))
    except ValidationError as error:
        raise _spec_error(error, prefix="hyperparameters", kind=kind) from error
    for name, value, fix in (*_truths_for_numbers(spec.hyperparameters, kind), *config.problems()):
        raise SpecError(f"hyperparameters.{name}", value, fix)
    return config


def _truths_for_numbers(given: Mapping[str, object], kind: type) -> Iterator[tuple[str, object, str]]:
    """To Pydantic true is 1: a run of `steps: true` would train for one step."""
    for one in dataclasses.fields(kind):
        if isinstance(given.get(one.name), bool) and one.type in (int, float):
            yield one.name, given[one.name], "write a number"


def _normal(data: dict[Any, Any]) -> dict[Any, Any]:
    """YAML reads `gpus: 2` as a number, an entrypoint as a list and a deadline as a time; the dataclasses want text and a tuple."""
    normal = dict(data) | ({"idle_timeout": "0"} if data.get("idle_timeout") in (0,) else {})
    resources = normal.get("resources")
    if isinstance(resources, dict):
        as_text = {key: str(value) for key, value in resources.items() if key in _AMOUNTS and type(value) is int}
        if type(resources.get("gpus")) is float:
            as_text["gpus"] = f"{resources['gpus']:g}"
        normal["resources"] = {**resources, **as_text}
    if isinstance(normal.get("entrypoint"), list):
        parts = normal["entrypoint"]
        normal["entrypoint"] = tuple(str(part) if type(part) in (int, float) else part for part in parts)
    for name in ("secrets", "secret_files", "after"):
        if isinstance(normal.get(name), list):
            normal[name] = tuple(normal[name])
    source = normal.get("data")
    if isinstance(source, dict) and isinstance(source.get("changes"), list):
        normal["data"] = {**source, "changes": tuple(source["changes"])}
    if isinstance(normal.get("placing"), dict):
        normal["placing"] = _normal_placing(normal["placing"])
    notify = normal.get("notify")
    if isinstance(notify, dict) and isinstance(notify.get("on"), list):
        normal["notify"] = {**notify, "on": tuple(notify["on"])}
    if isinstance(normal.get("env"), dict):
        normal["env"] = {key: str(value) if type(value) in (int, float) else value for key, value in normal["env"].items()}
    return normal


def _normal_placing(placing: dict[Any, Any]) -> dict[Any, Any]:
    normal = dict(placing)
    if isinstance(placing.get("where"), dict):
        normal["where"] = {key: str(value) if type(value) in (int, float) else value for key, value in placing["where"].items()}
    if isinstance(placing.get("data"), dict):
        normal["data"] = {key: str(value) if type(value) is int else value for key, value in placing["data"].items()}
    if isinstance(placing.get("regions"), list):
        normal["regions"] = tuple(placing["regions"])
    return normal


def _refuse_unwritable(spec: JobSpec) -> None:
    """Escapes can spell half a surrogate pair, which no UTF-8 file can hold, and NUL, which no argument or path can."""
    for name, value in dataclasses.asdict(spec).items():
        text = "".join(_texts(value))
        if "\0" in text:
            raise SpecError(name, value, "remove the NUL character")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            bad = ascii(error.object[error.start : error.end])
            raise SpecError(name, bad, "is not text that UTF-8 can write; remove it") from error


def _texts(data: object) -> Iterable[str]:
    match data:
        case str():
            yield data
        case dict():
            for key, value in data.items():
                yield from _texts(key)
                yield from _texts(value)
        case list() | tuple():
            for value in data:
                yield from _texts(value)


def _field_checks(spec: JobSpec) -> Iterable[Check]:
    label = "use lower-case letters, digits and '-', at most 63, beginning and ending with a letter or digit"
    for name in ("name", "project", "queue"):
        yield name, getattr(spec, name), NAME.fullmatch(getattr(spec, name)) is not None, label
    yield "team", spec.team, not spec.team or NAME.fullmatch(spec.team) is not None, label
    yield "num_nodes", spec.num_nodes, 1 <= spec.num_nodes <= 100_000, "write a number from 1 to 100000"
    yield "priority", spec.priority, 0 <= spec.priority <= 100, "write a number from 0 to 100"
    yield "max_restarts", spec.max_restarts, 0 <= spec.max_restarts <= 1_000_000, "write 0 to 1,000,000"
    yield "resources.cpus", spec.resources.cpus, 0 <= spec.resources.cpus <= CPUS_MAX, f"write 0 to {CPUS_MAX:,} cores"
    yield parsed("resources.gpus", spec.resources.gpus, lambda: parse_devices(spec.resources.gpus))
    yield parsed("resources.memory", spec.resources.memory, lambda: spec.resources.memory_bytes)
    yield parsed("max_duration", spec.max_duration, lambda: spec.max_duration_ms)
    yield "max_duration", spec.max_duration, spec.max_duration_ms != 0, "write a longer time, or leave it out for no limit"
    for key, number in spec.hyperparameters.items():
        yield f"hyperparameters.{key}", number, not isinstance(number, float) or math.isfinite(number), "write a finite number"
    for key, value in spec.env.items():
        yield f"env.{key}", value, _ENV_NAME.fullmatch(key) is not None, "name variables with letters, digits and '_'"
        yield f"env.{key}", value, not key.startswith("PHALANX_") or key in _OURS_TO_SET, "PHALANX_ names belong to the platform"


def _pair_checks(spec: JobSpec) -> Iterable[Check]:
    asked = bool(spec.entrypoint) + bool(spec.recipe)
    enough = asked == 1 or (not asked and spec.session != "")  # which has a shell, or Jupyter, of its own
    yield "entrypoint", spec.entrypoint, enough, "give either entrypoint or recipe, exactly one of them"
    if spec.entrypoint:
        yield parsed("entrypoint", spec.entrypoint, lambda: command_line(spec.entrypoint))
    if spec.recipe:
        near = difflib.get_close_matches(spec.recipe, RECIPES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(RECIPES)}"
        yield "recipe", spec.recipe, spec.recipe in RECIPES, hint
        yield "kind", spec.kind, spec.kind == "train", "a recipe trains: write kind: train"
        made = "phalanx data pack" if reads_images(spec.recipe) else "phalanx data prepare"
        yield "data", spec.data, spec.data is not None, f"a recipe needs data: {{path: DIR}} made by `{made}`"
        if reads_images(spec.recipe):
            yield from image_checks(spec)


def _environment_checks(spec: JobSpec) -> Iterable[Check]:
    environment = spec.environment
    given = [name for name in ("python", "lock", "image") if getattr(environment, name)]
    yield "environment", ", ".join(given), len(given) < 2, "give at most one of python, lock and image"
    if environment.lock:
        parts = PurePosixPath(environment.lock).parts
        inside = not environment.lock.startswith("/") and ".." not in parts
        yield "environment.lock", environment.lock, inside, "name a file inside workdir, relative to it"
        known = kind_of(environment.lock) is not None
        yield "environment.lock", environment.lock, known, "name a uv.lock, or a requirements file whose name ends in .txt"
        yield "workdir", spec.workdir, bool(spec.workdir), "environment.lock is a file of workdir: name the folder it is in"
    if environment.image:
        good = _IMAGE.fullmatch(environment.image) is not None
        yield (
            "environment.image",
            environment.image,
            good,
            "write an image reference such as registry/name:tag, or an absolute path",
        )


def _outside_checks(spec: JobSpec) -> Iterable[Check]:
    """What is fetched from, or told to, others."""
    for name in spec.secrets:
        yield "secrets", name, _ENV_NAME.fullmatch(name) is not None, "name secrets with letters, digits and '_'"
        yield "secrets", name, not name.startswith("PHALANX_"), "PHALANX_ names belong to the platform"
        yield "secrets", name, name not in spec.env, "it is in env too; give it once"
    yield "secrets", spec.secrets, len(set(spec.secrets)) == len(spec.secrets), "name each secret once"
    for name in spec.secret_files:
        yield "secret_files", name, _ENV_NAME.fullmatch(name) is not None, "name secrets with letters, digits and '_'"
        yield "secret_files", name, not name.startswith("PHALANX_"), "PHALANX_ names belong to the platform"
        taken = f"{name}_FILE" in spec.env or f"{name}_FILE" in spec.secrets
        yield (
            "secret_files",
            name,
            not taken,
            f"{name}_FILE says where its file is; name what else has that name otherwise",
        )
    yield "secret_files", spec.secret_files, len(set(spec.secret_files)) == len(spec.secret_files), "name each secret once"
    if spec.notify is not None:
        url = spec.notify.webhook
        yield "notify.webhook", url, _is_web(url), "write an http or https URL with a host, without user and password"
        yield "notify.webhook", f"({len(url)} characters)", len(url) <= WEBHOOK_CHARS_MAX, f"give at most {WEBHOOK_CHARS_MAX}"
        yield "notify.on", spec.notify.on, bool(spec.notify.on), "name at least one occasion, such as finished"
        name = spec.notify.secret
        yield "notify.secret", name, not name or _ENV_NAME.fullmatch(name) is not None, "name a stored secret"


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url if url.isprintable() and " " not in url else "")  # it leaves out line breaks and tabs without a word
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        return False


def command_line(entrypoint: str | tuple[str, ...]) -> tuple[str, ...]:
    """The argument vector of an entrypoint; a string is split as a shell would, without running one. Raises ValueError."""
    try:
        words = tuple(shlex.split(entrypoint)) if isinstance(entrypoint, str) else entrypoint
    except ValueError as error:  # in the words of shlex: "No closing quotation", "No escaped character"
        raise ValueError("a quote or a backslash is left open; close it, or write a list of words") from error
    if not words or not words[0].strip():
        raise ValueError("begin with the program to run")
    if isinstance(entrypoint, str) and (words[0] == "cd" or not _SHELL.isdisjoint(words)):
        raise ValueError("no shell reads it; write [bash, -c, '...'] for one that does")
    return words


def _spec_error(error: ValidationError, prefix: str = "", kind: type = JobSpec) -> SpecError:
    first = min(error.errors(include_url=False), key=lambda problem: problem["type"] != "unexpected_keyword_argument")
    where = [str(part) for part in first["loc"] if not str(part).startswith(_UNSAID)]
    if where[:2] == ["data", "shuffle"]:
        where = [part for part in where if part != Blocks.__name__]
    name = ".".join([*([prefix] if prefix else []), *where]) or "job"
    if first["type"] == "unexpected_keyword_argument":
        owner = _owner(where) or kind
        return SpecError(name, first["input"], _nearest(where[-1], [item.name for item in dataclasses.fields(owner)]))
    union = (_UNIONS.get(where[0]) or _UNIONS.get(".".join(where[:2]))) if where and not prefix else None
    if union is not None:  # what is wrong is said of each of its types; to people it is one field
        return SpecError(".".join(where[: union[0]]), value_of(first), union[1])
    form = with_unit(first) if name in ("max_duration", "idle_timeout", "deadline", "recovery.hang_timeout") else ""
    return SpecError(name, value_of(first), form or what_to_write(first))


_UNSAID: Final = ("function-", "constrained-", "tuple[", "literal[")
"""Parts of a place that are no field: which of several types was tried."""


def _owner(where: list[str]) -> type | None:
    """The dataclass that would have this field; None for the outermost."""
    if where[0] == "data" and len(where) > 2:
        return {"sources": MixtureSource, "changes": WeightChange, "shuffle": Blocks, "cache": DataCache}[where[1]]
    return _NESTED.get(where[0]) if len(where) > 1 else None


_UNIONS: Final = {
    "data.shuffle": (2, "write full, in_order, or {block_samples: N, window_blocks: M}"),
    "entrypoint": (1, "write a command line, or a list of words such as [python, train.py]"),
    "checkpoint.every": (2, "write a number of steps, 0 or more, or auto"),
    "hyperparameters": (2, "write text, a number, true or false"),
}
"""Fields of several types: how deep each lies, and what may be written."""


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"unknown key; did you mean {near[0]!r}?" if near else f"unknown key; known are {', '.join(known)}"


_ADAPTER: Final = TypeAdapter(JobSpec)
