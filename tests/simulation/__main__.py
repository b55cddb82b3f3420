"""`python -m tests.simulation --seeds 0:500 [--mutant NAME] [-o json|text] [--stop-at-first] [--trace SEED] [--jobs N]`"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.history import Line, Outcome, run
from tests.simulation.many import run_many
from tests.simulation.mutants import MUTANTS, planted

REDS_TOLD: Final = 20
TOLD_MAX: Final = 2
ABOUT_CHARS_MAX: Final = 400


def main(words: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(words)
    if asked.trace is not None:
        return _trace(asked.trace, asked.mutant)
    first, end = asked.seeds
    outcomes = _run_all(range(first, end), asked.mutant, asked.jobs, asked.stop_at_first)
    red = [one for one in outcomes if one.property_name]
    if asked.output == "text" or red:
        sys.stderr.write("".join(f"seed {one.seed}: {one.what}\n" for one in red[:REDS_TOLD]))
    summary = {
        "seeds": len(outcomes),
        "failures": len(red),
        "mutant": asked.mutant or None,
        "first_red_seed": red[0].seed if red else None,
    }
    text = json.dumps(summary) if asked.output == "json" else ", ".join(f"{name}: {value}" for name, value in summary.items())
    sys.stdout.write(f"{text}\n")
    return 1 if red else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Seeded histories of a whole cluster.")
    parser.add_argument("--seeds", type=_span, default=(0, 500), metavar="FIRST:END", help="half-open; default 0:500")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), default="", help="plant this fault in the code under test")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    parser.add_argument("--stop-at-first", action="store_true", help="end at the first violation found")
    parser.add_argument("--trace", type=int, metavar="SEED", help="print what happens in one seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes; default: one a CPU")
    return parser


def _span(text: str) -> tuple[int, int]:
    first, _, end = text.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r}: write FIRST:END such as 0:500")
    return int(first), int(end)


def _run_all(seeds: range, mutant: str, jobs: int, stop_at_first: bool) -> list[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("seeds", total=len(seeds))
        return run_many(seeds, mutant, jobs, stop_at_first, lambda done: progress.advance(bar, done))


def _trace(seed: int, mutant: str) -> int:
    history: list[Line] = []
    with planted(mutant):
        outcome = run(seed, history)
    sys.stdout.writelines(f"{line}\n" for line in told(history))
    end = outcome.what or "nothing was violated"
    sys.stdout.write(f"seed {seed}: {end} ({outcome.seconds} s, {outcome.events} events)\n")
    return 1 if outcome.property_name else 0


def told(history: Sequence[Line]) -> Iterator[str]:
    """One line for each thing that happened; what happens again and again is told once."""
    last, times = "", 0
    for at_ms, who, what, about in history:
        told_now = f"{who:<12} {what}{f': {_brief(about)}' if about != '' else ''}"
        times = times + 1 if told_now == last else 0
        last = told_now
        if times < TOLD_MAX:
            yield f"{at_ms / 1000:9.3f}  {told_now}"


def _brief(about: object) -> str:
    text = str(about)
    return text if len(text) <= ABOUT_CHARS_MAX else f"{text[:ABOUT_CHARS_MAX]}..."


if __name__ == "__main__":
    sys.exit(main())
