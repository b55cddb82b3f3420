"""Untrusted data to `Clusters`: every problem becomes one `SpecError` that names the field, the value and what to change."""

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from phalanx.core.clusters import CLUSTERS_FILE, EVERY, Cluster, Clusters
from phalanx.core.errors import NotFound, SpecError
from phalanx.core.ids import NAME
from phalanx.core.validation import misread, value_of, what_to_write
from phalanx.core.yaml_text import read_yaml_file

FILE_BYTES_MAX: Final = 64 * 1024
CLUSTERS_MAX: Final = 100
PRICE_MAX: Final = 1e9
_FORM: Final = "clusters: {lab: {home: ~/.phalanx}, cloud: {url: 'https://HOST', token_file: cloud.token}}"


def load_clusters(path: Path) -> Clusters:
    """The clusters of a YAML file, their paths made absolute. Raises NotFound when there is no such file, SpecError."""
    if not path.exists():
        raise NotFound(CLUSTERS_FILE, str(path), f"there is no such file; write one, such as {_FORM}")
    found = parse_clusters(read_yaml_file(path, CLUSTERS_FILE, FILE_BYTES_MAX))
    clusters = {name: _anchored(cluster, path.parent) for name, cluster in found.clusters.items()}
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


def _anchored(cluster: Cluster, folder: Path) -> Cluster:
    home, token_file = (str(folder / Path(text).expanduser()) if text else "" for text in (cluster.home, cluster.token_file))
    return dataclasses.replace(cluster, home=home, token_file=token_file)


def _problems(found: Clusters) -> Iterator[tuple[str, object, str]]:
    if not 0 < len(found.clusters) <= CLUSTERS_MAX:
        yield "clusters", f"{len(found.clusters)} of them", f"name 1 to {CLUSTERS_MAX}, such as {_FORM}"
    for name, cluster in found.clusters.items():
        yield from _cluster(name, cluster)
    for field in ("hour_of_delay", "egress"):
        yield from _amount(field, getattr(found, field))
    yield from _parsed("burst_after", found, found.burst_after)


def _cluster(name: str, cluster: Cluster) -> Iterator[tuple[str, object, str]]:
    at = f"clusters.{name}"
    if NAME.fullmatch(name) is None or name == EVERY:
        yield "clusters", name, f"use lower-case letters, digits and '-', at most 63; {EVERY!r} stands for every cluster"
    if bool(cluster.home) == bool(cluster.url):
        given = ", ".join(part for part in (cluster.home, cluster.url) if part)
        yield at, given, "give either home, of a platform on this machine, or url and token_file"
    if cluster.url and not cluster.token_file:
        yield f"{at}.token_file", cluster.token_file, f"name a file with a token of {cluster.url}"
    if cluster.price is not None:
        yield from _amount(f"{at}.price", cluster.price)
    if not (math.isfinite(cluster.speed) and 0 < cluster.speed <= 1e6):
        yield f"{at}.speed", cluster.speed, "write a number above 0, such as 0.5 for devices half as fast"
    yield from _parsed(f"{at}.bandwidth", cluster, cluster.bandwidth)


def _amount(at: str, value: float) -> Iterator[tuple[str, object, str]]:
    if not (math.isfinite(value) and 0 <= value <= PRICE_MAX):
        yield at, value, "write US dollars, 0 or more"


def _parsed(at: str, owner: Cluster | Clusters, text: str) -> Iterator[tuple[str, object, str]]:
    try:
        good = owner.bandwidth_bytes > 0 if isinstance(owner, Cluster) else owner.burst_after_ms >= 0
    except ValueError as error:
        yield at, text, str(error)
        return
    if not good:
        yield at, text, "write more than 0 bytes per second, such as '1GB'"


def _spec_error(error: ValidationError) -> SpecError:
    first = min(error.errors(include_url=False), key=lambda problem: problem["type"] != "unexpected_keyword_argument")
    where = [str(part) for part in first["loc"] if not str(part).startswith(("function-", "constrained-", "tuple["))]
    name = ".".join(where) or CLUSTERS_FILE
    if first["type"] != "unexpected_keyword_argument":
        return SpecError(name, value_of(first), what_to_write(first))
    known = [item.name for item in dataclasses.fields(Cluster if len(where) > 1 else Clusters)]
    near = difflib.get_close_matches(where[-1], known, n=1, cutoff=0.5)
    fix = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
    return SpecError(name, _without_secret(first), f"unknown key; {fix}")


def _without_secret(problem: Any) -> object:
    """A token that was written into the file is not repeated."""
    return "(hidden)" if "token" in str(problem["loc"][-1]) else value_of(problem)


_ADAPTER: Final = TypeAdapter(Clusters)
