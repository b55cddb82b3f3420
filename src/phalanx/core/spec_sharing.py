"""What is wrong with how a job shares the fleet: its size, its place, its turn. Part of `spec_parse`: (field, value, good, what to
change), the most basic first."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from phalanx.core.ids import NAME
from phalanx.core.spec import JobSpec
from phalanx.core.units import size_bytes

Check = tuple[str, object, bool, str]

ARRAY_MAX: Final = 10_000
AFTER_MAX: Final = 100
REGIONS_MAX: Final = 100
_JOB: Final = re.compile(rf"{NAME.pattern}-[0-9]{{1,12}}")
_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_LABEL_FORM: Final = "use letters, digits and ._/- inside, at most 63 characters"
_NAME_FORM: Final = "use lower-case letters, digits and '-', at most 63, beginning and ending with a letter or digit"


def sharing_checks(spec: JobSpec) -> Iterable[Check]:
    yield from _size(spec)
    yield from _share(spec)
    yield from _place(spec)
    yield from _regions(spec)
    yield from _turn(spec)


def parsed(name: str, value: object, parse: Callable[[], object]) -> Check:
    """Whether a text has its form; the error says which."""
    try:
        parse()
    except ValueError as error:
        return name, value, False, str(error)
    return name, value, True, ""


def _size(spec: JobSpec) -> Iterable[Check]:
    fewest = spec.min_nodes
    yield (
        "min_nodes",
        fewest,
        0 <= fewest <= spec.num_nodes,
        f"write a number from 1 to num_nodes ({spec.num_nodes}), or leave it out",
    )
    may = fewest in (0, spec.num_nodes) or not spec.recipe
    yield "min_nodes", fewest, may, "leave it out: a recipe keeps its number of nodes, which fixes its global batch"
    if spec.array is not None:
        count, parallel = spec.array.count, spec.array.parallel
        yield "array.count", count, 1 <= count <= ARRAY_MAX, f"write a number from 1 to {ARRAY_MAX}"
        yield "array.parallel", parallel, 0 <= parallel <= count, f"write a number from 1 to count ({count}), or 0 for all at once"


def _share(spec: JobSpec) -> Iterable[Check]:
    """`resources.gpus` has been found well formed before."""
    resources = spec.resources
    good = parsed("resources.gpu_memory", resources.gpu_memory, lambda: resources.devices)
    yield good
    if not good[2]:
        return
    asked = resources.devices
    whole = not asked.memory_bytes or asked.is_share
    yield (
        "resources.gpu_memory",
        resources.gpu_memory,
        whole,
        'is the bound of a share, such as gpus: "0.25"; whole devices have all of theirs',
    )
    yield (
        "num_nodes",
        spec.num_nodes,
        spec.num_nodes == 1 or not asked.is_share,
        "write 1: a share of a device is one rank on one node",
    )


def _place(spec: JobSpec) -> Iterable[Check]:
    placing, nodes = spec.placing, spec.num_nodes
    divides = placing.group == 0 or (placing.group > 0 and nodes % placing.group == 0)
    yield "placing.group", placing.group, divides, f"write a number that divides num_nodes ({nodes}), or 0 for no groups"
    whole = placing.group <= 0 or spec.min_nodes % placing.group == 0
    yield "min_nodes", spec.min_nodes, whole, f"write a multiple of placing.group ({placing.group})"
    for key, value in placing.where.items():
        yield f"placing.where.{key}", key, _LABEL.fullmatch(key) is not None, f"name a label: {_LABEL_FORM}"
        yield f"placing.where.{key}", value, _LABEL.fullmatch(value) is not None, _LABEL_FORM


def _regions(spec: JobSpec) -> Iterable[Check]:
    placing = spec.placing
    yield "placing.regions", placing.regions, len(placing.regions) <= REGIONS_MAX, f"name at most {REGIONS_MAX}"
    yield "placing.data", f"{len(placing.data)} regions", len(placing.data) <= REGIONS_MAX, f"name at most {REGIONS_MAX}"
    for region in (*placing.regions, *placing.data):
        field = "placing.regions" if region in placing.regions else "placing.data"
        yield field, region, NAME.fullmatch(region) is not None, f"name a region: {_NAME_FORM}"
    for region, size in placing.data.items():
        yield parsed(f"placing.data.{region}", size, partial(size_bytes, size))


def _turn(spec: JobSpec) -> Iterable[Check]:
    yield parsed("deadline", spec.deadline, lambda: spec.deadline_ms(0))
    yield "window", spec.window, not spec.window or NAME.fullmatch(spec.window) is not None, _NAME_FORM
    yield "after", spec.after, len(spec.after) <= AFTER_MAX, f"name at most {AFTER_MAX} jobs"
    for job in spec.after:
        yield "after", job, _JOB.fullmatch(job) is not None, "name a job by its id, such as tiny-lm-7"
        yield "after", job, spec.after.count(job) == 1, "name each job once"
