"""What is wrong with a job that people work in. Part of `spec_parse`: (field, value, good, what to change)."""

from collections.abc import Iterable
from typing import Final

from phalanx.core.spec import JobSpec
from phalanx.core.spec_sharing import Check, parsed

IDLE_MS_MIN: Final = 60 * 1000
"""Signals come every quarter of a minute."""


def session_checks(spec: JobSpec) -> Iterable[Check]:
    """Of shells and notebooks; others have nothing of them."""
    if not spec.session:
        fix = "is of kind: shell and kind: notebook; write max_duration for a limit, or leave it out"
        yield "idle_timeout", spec.idle_timeout, not spec.idle_timeout, fix
        return
    yield "num_nodes", spec.num_nodes, spec.num_nodes == 1, f"a {spec.kind} runs on one node: leave it out"
    yield "min_nodes", spec.min_nodes, spec.min_nodes == 0, f"a {spec.kind} runs on one node: leave it out"
    yield "array", spec.array, spec.array is None, f"submit each {spec.kind} by itself"
    image = spec.environment.image
    yield "environment.image", image, not image, f"a {spec.kind} does not run in a container: name a lock or a python instead"
    if spec.kind == "notebook":
        yield "entrypoint", spec.entrypoint, not spec.entrypoint, "a notebook runs the environment's Jupyter: leave it out"
    yield parsed("idle_timeout", spec.idle_timeout, lambda: spec.idle_timeout_ms)
    enough = spec.idle_timeout_ms == 0 or spec.idle_timeout_ms >= IDLE_MS_MIN
    yield "idle_timeout", spec.idle_timeout, enough, "write 1m or more, or '0' for never"
