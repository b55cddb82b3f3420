"""A script's steps: how long each took and for what, as records that the job's page, curves and ledger are made of.

A step lasts from one `log` to the next. Of a loss on a GPU the copy is begun, and its record written when that has arrived. Nothing
here waits, unless the device is sixteen steps behind.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from phalanx.core.errors import UserError
from phalanx.core.records import StepRecord
from phalanx.job.sdk.session import Session

Value = Any
"""A number, or a tensor of one."""
_PENDING_MAX: Final = 16
_NAME_CHARS_MAX: Final = 128
_OF_STEP: Final = ("loss", "grad_norm", "lr", "mfu")


@dataclass(frozen=True, slots=True)
class _Said:
    """Of one step, while numbers are on their way from a device."""

    step: int
    values: Mapping[str, "_Number"]
    tokens: int
    took_s: float
    waited_s: float
    stalled_s: float
    began_ms: int


class Steps:
    """Of one rank. total: of the whole run, 0 where nobody knows."""

    def __init__(
        self, session: Session, rank: int, total: int, clock_s: Callable[[], float], unix_ms: Callable[[], int] | None = None
    ) -> None:
        self.newest = 0
        self._session, self._rank, self._total, self._clock_s = session, rank, total, clock_s
        self._unix_ms = unix_ms or (lambda: time.time_ns() // 1_000_000)
        self._pending: deque[_Said] = deque()
        self._waited_s = 0.0
        self.begin(0)

    def begin(self, step: int) -> None:
        """The first step begins now, after `step`."""
        self.newest = step
        self._began_s, self._began_ms = self._clock_s(), self._unix_ms()

    def waited(self, seconds: float) -> None:
        """The step waited so long for data."""
        self._waited_s += seconds

    def log(self, step: int, stalled_s: float, tokens: int, values: Mapping[str, Value]) -> None:
        """`step` is done. tokens: of the global batch of one step. Raises UserError for a step that does not come after the one
        before, and for what is no number."""
        fix = f"steps count up from 1, and {self.newest} was said; log each once, after its update"
        step = step_of(step, self.newest + 1, fix)
        numbers = {_name(name): _Number.of(name, value) for name, value in values.items() if value is not None}
        now_s, now_ms = self._clock_s(), self._unix_ms()
        count, took_s = step - self.newest, now_s - self._began_s
        self._pending.append(_Said(step, numbers, tokens * count, took_s, min(self._waited_s, took_s), stalled_s, self._began_ms))
        self.newest, self._waited_s = step, 0.0
        self._began_s, self._began_ms = now_s, now_ms
        self.flush()
        while len(self._pending) > _PENDING_MAX:
            self._write(self._pending.popleft())  # waits for the oldest alone: the newest is behind all that the device has to do

    def flush(self, wait: bool = False) -> None:
        """Writes what has arrived; waits for all of it on request."""
        while self._pending and (wait or all(number.is_here() for number in self._pending[0].values.values())):
            self._write(self._pending.popleft())

    def _write(self, said: _Said) -> None:
        values = {name: number.value() for name, number in said.values.items()}
        loss, took_ms = values.get("loss", math.nan), int(said.took_s * 1000)
        data_ms = min(int(said.waited_s * 1000), took_ms)
        save_ms = min(int(said.stalled_s * 1000), took_ms - data_ms)
        self._session.step(StepRecord(
            rank=self._rank, step=said.step, total_steps=max(self._total, said.step), loss=loss, loss_hex=loss.hex(),
            grad_norm=values.get("grad_norm", 0.0), lr=values.get("lr", 0.0), mfu=values.get("mfu", 0.0),
            tokens=said.tokens, tokens_per_s=said.tokens / max(said.took_s, 1e-9),
            started_ms=said.began_ms, ended_ms=said.began_ms + took_ms,
            data_wait_ms=data_ms, checkpoint_ms=save_ms, compute_ms=took_ms - data_ms - save_ms,
        ))  # fmt: skip
        if self._rank == 0:
            for name, value in values.items():
                if name not in _OF_STEP:
                    self._session.metric(name=name, value=value, step=said.step)


class _Number:
    """One that may still be on its way from a device."""

    def __init__(self, number: float | torch.Tensor, arrives: "torch.cuda.Event | None" = None) -> None:
        self._number, self._arrives = number, arrives

    @classmethod
    def of(cls, name: str, value: Value) -> "_Number":
        """Raises UserError."""
        match value:
            case bool() | int() | float() | np.number():
                return cls(float(value))
            case DTensor():
                raise UserError(name, "a DTensor", "give what `full_tensor()` of it gives, on every rank")
            case torch.Tensor() if value.numel() == 1 and not value.is_complex():
                value = value.detach().reshape(())
                if value.device.type != "cuda":
                    return cls(float(value.item()))
                arrives = torch.cuda.Event()  # type: ignore[no-untyped-call]
                copied = torch.empty((), dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
                arrives.record()
                return cls(copied, arrives)
        shown = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise UserError(name, shown, "give one number, or a tensor of one")

    def is_here(self) -> bool:
        return self._arrives is None or bool(self._arrives.query())  # type: ignore[no-untyped-call]

    def value(self) -> float:
        if self._arrives is not None:
            self._arrives.synchronize()
        return float(self._number)


def step_of(value: Any, least: int, fix: str) -> int:
    """Also of NumPy. Raises UserError for what is no whole number, or less."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UserError("step", value if isinstance(value, int | float | str) else f"a {type(value).__name__}", fix)
    return int(value)


def is_name(name: str) -> bool:
    """Whether a metric may be called so."""
    return 0 < len(name) <= _NAME_CHARS_MAX and name.isprintable()


def _name(name: str) -> str:
    if not is_name(name):
        raise UserError("name of a metric", name[:_NAME_CHARS_MAX], f"write 1 to {_NAME_CHARS_MAX} visible characters")
    return name
