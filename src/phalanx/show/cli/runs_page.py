"""Tracked runs as a list, as a page, and side by side."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType

from phalanx.core.units import show_duration
from phalanx.core.use_views import RunView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, moment_cell, pairs, section

NONE: Final = "-"
_ABSENT: Final = object()


def runs_page(runs: Sequence[RunView], project: str = "") -> Iterator[RenderableType]:
    """One row each."""
    if not runs:
        yield line(f"No job of project {project} has begun yet." if project else "No job has begun yet.")
        return
    head = ("RUN", "NAME", "PROJECT", "STATE", "USER", "STEP", "LOSS", "MODEL", "STARTED (UTC)")
    rows = [
        (
            run.run, run.name, run.project or NONE, run.state, run.user, _step(run), _loss(run), run.model or NONE,
            moment_cell(run.started_ms),
        )
        for run in runs
    ]  # fmt: skip
    yield Grid(head, rows, right=("STEP", "LOSS"), drop=("NAME", "USER", "STARTED (UTC)", "PROJECT", "MODEL"), cut="RUN")


def run_page(run: RunView) -> Iterator[RenderableType]:
    """One run, with all that it was configured with."""
    yield pairs((name, value) for name, value in (("Run", f"{run.run} ({run.name})"), *_facts(run)) if value != NONE)
    if settings := _flat(run.config):
        yield from section("Hyperparameters", pairs((name, _written(value)) for name, value in sorted(settings.items())))


def compared_page(runs: Sequence[RunView], every: bool) -> Iterator[RenderableType]:
    """A column each: what they came to, then hyperparameters. every: also those that are the same in all."""
    facts = [dict(_facts(run)) for run in runs]
    rows = [(name, *(one[name] for one in facts)) for name in facts[0]]
    settings = [_flat(run.config) for run in runs]
    names = sorted({name for one in settings for name in one})
    same = 0
    for name in names:
        values = [one.get(name, _ABSENT) for one in settings]
        if not every and all(_written(value) == _written(values[0]) for value in values):
            same += 1
            continue
        rows.append((name, *(_written(value) for value in values)))
    yield Grid(("", *(str(run.run) for run in runs)), rows, right=tuple(str(run.run) for run in runs))
    if same:
        yield line(f"{same} of {len(names)} hyperparameters are the same in all; --all shows them too.")


def _facts(run: RunView) -> Iterator[tuple[str, str]]:
    """What a run is and came to."""
    yield "Project", run.project or NONE
    yield "State", run.state
    yield "User", run.user
    yield "Step", _step(run)
    yield "Loss", _loss(run)
    yield "Model", run.model or NONE
    yield "Attempts", str(run.attempts)
    yield "Took", NONE if run.finished_ms is None else show_duration(run.finished_ms - run.started_ms)
    yield "Code", run.code[:12] or NONE
    yield "Config", run.config_hash[:12]


def _step(run: RunView) -> str:
    if not run.step:
        return NONE
    return f"{run.step:,} of {run.total_steps:,}" if run.total_steps else f"{run.step:,}"


def _loss(run: RunView) -> str:
    return NONE if run.loss is None else f"{run.loss:.4f}"


def _flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """By dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        inner = _flat(value, f"{before}{name}.") if isinstance(value, Mapping) and value else {f"{before}{name}": value}
        found |= inner
    return found


def _written(value: Any) -> str:
    """As in a job file; of text that could be a number it says that it is text."""
    if value is _ABSENT:
        return NONE
    if isinstance(value, str):
        return value if value and not _is_json(value) and value != NONE else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
