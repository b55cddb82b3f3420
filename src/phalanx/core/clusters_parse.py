"""Untrusted data to `Clusters`: every problem becomes one `SpecError` that names the field, the value and what to change."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from phalanx.core.clusters import CLUSTERS_FILE, EVERY, Cluster, Clusters
from phalanx.core.errors import NotFound, SpecError
from phalanx.core.ids import NAME
from phalanx.core.validation import misread, value_of, what_to_write
from phalanx.core.yaml_text import read_yaml_file

FILE_BYTES_MAX: Final = 64 * 1024
CLUSTERS_MAX: Final = 100
PRICE_MAX: Final = 1e9
SPEED_MAX: Final = 1_000
_FORM: Final = "clusters: {lab: {home: ~/.phalanx}, cloud: {url: 'https://HOST', token_file: cloud.token}}"


def load_clusters(path: Path) -> Clusters:
    """The clusters of a YAML file, their paths made absolute. Raises NotFound when there is no such file, SpecError."""
    if not path.exists():
        raise NotFound(CLUSTERS_FILE, str(path), f"there is no such file; write one, such as {_FORM}")
    found = parse_clusters(read_yaml_file(path, CLUSTERS_FILE, FILE_BYTES_MAX))
    clusters = {name: _anchored(f"clusters.{name}", cluster, path.parent) for name, cluster in found.clusters.items()}
    return dataclasses.replace(found, clusters=clusters)


def parse_clusters(data: object) -> Clusters:
    """Raises SpecError for the first problem found."""
    if not isinstance(data, Mapping):
        raise SpecError(CLUSTERS_FILE, data, f"write a mapping, such as {_FORM}")
    try:
        found: Clusters = _ADAPTER.validate_python(dict(data))
    except ValidationError as error:
        raise _spec_error(error) from error
    for name, value, fix in misread(data, found, ""):
        raise SpecError(name, value, fix)
    for name, value, fix in _problems(found):
        raise SpecError(name, value, fix)
    return found


def chosen(clusters: Clusters, asked: str) -> tuple[str, ...]:
    """The names in 'a,b', each once, or all for 'all'. Raises SpecError for one that is not in the file."""
    if asked == EVERY:
        return tuple(clusters.clusters)
    names = tuple(dict.fromkeys(name.strip() for name in asked.split(",")))
    for name in names:
        if name not in clusters.clusters:
            near = difflib.get_close_matches(name, clusters.clusters, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(clusters.clusters)}; or write {EVERY}"
            raise SpecError("--clusters", name, f"is not in {CLUSTERS_FILE}; {hint}")
    return names


def _anchored(at: str, cluster: Cluster, folder: Path) -> Cluster:
    home = _from_folder(f"{at}.home", cluster.home, folder)
    return dataclasses.replace(cluster, home=home, token_file=_from_folder(f"{at}.token_file", cluster.token_file, folder))


def _from_folder(field: str, text: str, folder: Path) -> str:
    try:
        return str(folder / Path(text).expanduser()) if text else ""
    except RuntimeError as error:
        raise SpecError(field, text, "begins with a user that this machine does not know; write the whole path") from error


def _problems(found: Clusters) -> Iterator[tuple[str, object, str]]:
    if not 0 < len(found.clusters) <= CLUSTERS_MAX:
        yield "clusters", f"{len(found.clusters)} of them", f"name 1 to {CLUSTERS_MAX}, such as {_FORM}"
    for name, cluster in found.clusters.items():
        yield from _cluster(name, cluster)
    for field in ("hour_of_delay", "egress"):
        yield from _amount(field, getattr(found, field))
    if wrong := _unread(lambda: found.burst_after_ms):
        yield "burst_after", found.burst_after, wrong


def _cluster(name: str, cluster: Cluster) -> Iterator[tuple[str, object, str]]:
    at = f"clusters.{name}"
    if NAME.fullmatch(name) is None or name == EVERY:
        yield "clusters", name, f"use lower-case letters, digits and '-', at most 63; {EVERY!r} stands for every cluster"
    yield from _way(at, cluster)
    if cluster.price is not None:
        yield from _amount(f"{at}.price", cluster.price)
    if not 1 / SPEED_MAX <= cluster.speed <= SPEED_MAX:  # NaN is not, either
        yield f"{at}.speed", cluster.speed, f"write a number from {1 / SPEED_MAX} to {SPEED_MAX:,}: 0.5 is half as fast"
    if wrong := _unread(lambda: cluster.bandwidth_bytes):
        yield f"{at}.bandwidth", cluster.bandwidth, wrong
    elif not cluster.bandwidth_bytes:
        yield f"{at}.bandwidth", cluster.bandwidth, "write more than 0 bytes per second, such as '1GB'"


def _way(at: str, cluster: Cluster) -> Iterator[tuple[str, object, str]]:
    """How it is reached. What stands before the host may be a password."""
    host = cluster.url.rpartition("@")[2]
    if bool(cluster.home) == bool(cluster.url):
        given = ", ".join(part for part in (cluster.home, host) if part)
        yield at, given, "give either home, of a platform on this machine, or url and token_file"
    elif cluster.url and not cluster.token_file:
        yield f"{at}.token_file", cluster.token_file, f"name a file with a token of {host}"
    elif cluster.home and cluster.token_file:
        yield f"{at}.token_file", cluster.token_file, "leave it out: a home has its own token"


def _amount(at: str, value: float) -> Iterator[tuple[str, object, str]]:
    if not (math.isfinite(value) and 0 <= value <= PRICE_MAX):
        yield at, value, "write US dollars, 0 or more"


def _unread(read: Callable[[], object]) -> str:
    """Why a text cannot be read; '' where it can."""
    try:
        read()
    except ValueError as error:
        return str(error)
    return ""


def _spec_error(error: ValidationError) -> SpecError:
    first = min(error.errors(include_url=False), key=lambda problem: problem["type"] != "unexpected_keyword_argument")
    where = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-", "tuple[", "[key]"))]
    name = ".".join(where) or CLUSTERS_FILE
    if first["type"] != "unexpected_keyword_argument":
        return SpecError(name, value_of(first), what_to_write(first))
    known = [item.name for item in dataclasses.fields(Cluster if len(where) > 1 else Clusters)]
    near = difflib.get_close_matches(where[-1], known, n=1, cutoff=0.5)
    fix = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return SpecError(name, "(hidden)", f"unknown key; {fix}")  # it may be a token


_ADAPTER: Final = TypeAdapter(Clusters)
