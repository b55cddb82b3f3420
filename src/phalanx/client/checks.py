"""What can be told to be wrong before anything is sent: names that would become part of a path, specs, secrets' names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from phalanx.core.errors import NotFound, SpecError
from phalanx.core.spec import JobSpec
from phalanx.core.spec_parse import checked, parse_spec

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,80}")
"""What a job's id or a model's name can look like. Anything else is not sent: it would become part of a path."""
_NODE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ATTEMPT: Final = re.compile(r"[a-z0-9-]{0,90}\.?[0-9]{1,9}")


def job_path(job: str) -> str:
    """Raises NotFound for what is no id of a job."""
    if _ID.fullmatch(job) is None:
        raise NotFound("job", job, "no such job; `phalanx ls` shows their ids, such as tiny-lm-7")
    return f"/jobs/{job}"


def run_path(job: str) -> str:
    """Raises NotFound likewise."""
    return f"/runs/{job_path(job).rpartition('/')[2]}"


def attempt_path(job: str, attempt: str) -> str:
    """Raises NotFound for what is no id or number of an attempt."""
    if _ATTEMPT.fullmatch(attempt) is None:
        raise NotFound("attempt", attempt, f"no such attempt; `phalanx describe {job}` shows them")
    return f"{job_path(job)}/attempts/{attempt}"


def node_path(node: str, below: str = "/nodes") -> str:
    """Raises NotFound for what is no name of a node."""
    if _NODE.fullmatch(node) is None:
        raise NotFound("node", node, "no such node; `phalanx node ls` shows their names")
    return f"{below}/{node}"


def queue_path(queue: str) -> str:
    """Raises NotFound for what is no name of a queue."""
    if _ID.fullmatch(queue) is None:
        raise NotFound("queue", queue, "no such queue; `phalanx queue ls` shows them all")
    return f"/queues/{queue}"


def model_path(name: str) -> str:
    """Raises NotFound for what is no name of a model."""
    if _ID.fullmatch(name) is None:
        raise NotFound("model", name, "no such model; `phalanx model ls` shows what there is")
    return f"/models/{name}"


def checked_secret(name: str) -> str:
    """`name` as that of a secret. Raises SpecError."""
    if _VARIABLE.fullmatch(name) is None:
        raise SpecError("secret", name, "name secrets with letters, digits and '_', at most 64, not beginning with a digit")
    return name


def known_spec(spec: object) -> JobSpec:
    """Raises SpecError."""
    if isinstance(spec, str | Path):
        raise SpecError("job", str(spec), "give a mapping of its fields, or load_spec(path) of `core.spec_parse` for a job file")
    return checked(spec) if isinstance(spec, JobSpec) else parse_spec(dict(spec) if isinstance(spec, Mapping) else spec)
