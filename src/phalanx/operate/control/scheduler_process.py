"""The scheduler's own process: one JSON line with a question in, one with a plan or an error out; ends when stdin does.

What it remembers makes it faster and nothing else: it may die at any time, and is asked about the whole snapshot then. May not
import the controller or the store.
"""

import contextlib
import gc
import os
from dataclasses import dataclass
from typing import BinaryIO, Final

from phalanx.core import wire
from phalanx.decide.scheduler import Plan, schedule
from phalanx.decide.scheduler.memory import Memory
from phalanx.operate.control.questions import Answerer, Question

LOOK_THROUGH: Final = 1_000
"""Decisions after which all objects are looked through, which takes about as long as one of them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan, or why there is none."""

    plan: Plan | None
    error: str = ""


def serve(questions: BinaryIO, answers: int) -> None:
    """Answers every line of `questions` on the descriptor `answers`, until either end is gone.

    What a decision leaves behind in circles is collected once it is told: looking through a large fleet's objects in the middle of
    one would take longer than the rest of it. What lived for longer than one decision is looked through now and then."""
    mind = Mind()
    gc.disable()
    with contextlib.suppress(BrokenPipeError):  # the server was killed; its successor starts its own
        for number, line in enumerate(questions, start=1):
            text = memoryview(wire.dumps(Answer, mind.answer(line)).encode() + b"\n")
            while text:
                text = text[os.write(answers, text) :]
            gc.collect(0 if number % LOOK_THROUGH else 2)


class Mind:
    """What one such process knows."""

    def __init__(self) -> None:
        self._answerer = Answerer()
        self._memory = Memory()

    def answer(self, line: bytes) -> Answer:
        """Total: a question that cannot be read or decided gives an error, never an exception."""
        try:
            return Answer(schedule(self._answerer.snapshot(wire.loads(Question, line)), self._memory))
        except Exception as error:  # noqa: BLE001 (whatever the decision raises is told to the server, which logs it and goes on)
            self._memory = Memory()
            return Answer(None, f"{type(error).__name__}: {error}")
        finally:
            self._memory.decided = None  # nobody asks what-if here; and what is alive when rubbish is collected stays for long
