"""The scheduler's own process: one JSON line with a snapshot in, one with a plan or an error out; ends when stdin does.

It holds no state, so it may die at any time. May not import the controller or the store.
"""

import contextlib
import os
from dataclasses import dataclass
from typing import BinaryIO

from phalanx.core import wire
from phalanx.decide.scheduler import Plan, Snapshot, schedule


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan, or why there is none."""

    plan: Plan | None
    error: str = ""


def serve(questions: BinaryIO, answers: int) -> None:
    """Answers every line of `questions` on the descriptor `answers`, until either end is gone."""
    with contextlib.suppress(BrokenPipeError):  # the server was killed; its successor starts its own
        for line in questions:
            text = memoryview(wire.dumps(Answer, answer(line)).encode() + b"\n")
            while text:
                text = text[os.write(answers, text) :]


def answer(line: bytes) -> Answer:
    """Total: a snapshot that cannot be read or decided gives an error, never an exception."""
    try:
        return Answer(schedule(wire.loads(Snapshot, line)))
    except Exception as error:  # noqa: BLE001 (whatever the decision raises is told to the server, which logs it and goes on)
        return Answer(None, f"{type(error).__name__}: {error}")
