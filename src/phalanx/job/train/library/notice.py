"""The word that this job shall leave soon (drain, preemption, pause, a spot interruption): SIGTERM, which is death otherwise."""

import signal
import threading
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist


class Notice:
    """SIGTERM is heeded from the first question on: of a script that never asks it ends the process, as ever; so does a second
    one."""

    def __init__(self) -> None:
        self._is_given = False
        self._is_agreed = False
        self._before: Any = None
        self._is_watching = False
        self._asked: tuple[torch.Tensor, dist.Work] | None = None

    def is_agreed(self) -> bool:
        """Whether any rank had been told at the question before this one; of one process at this one. A collective of all ranks in
        which nobody waits: they hear of it by the next question, all at the same."""
        self._watch()
        if dist.get_world_size() == 1:
            self._is_agreed = self._is_given
            return self._is_agreed
        self._hear()
        flag = torch.tensor(int(self._is_given), dtype=torch.int32)
        work = dist.all_reduce(flag, dist.ReduceOp.MAX, async_op=True)
        assert work is not None
        self._asked = flag, work
        return self._is_agreed

    @property
    def is_known(self) -> bool:
        """What the newest question has brought. No collective."""
        return self._is_agreed

    def finish(self) -> None:
        """Waits for the question that is under way."""
        self._hear()

    def close(self) -> None:
        if self._is_watching and signal.getsignal(signal.SIGTERM) == self._take:
            signal.signal(signal.SIGTERM, self._before)
        self._is_watching = False

    def _hear(self) -> None:
        if self._asked is not None:
            flag, work = self._asked
            self._asked = None
            work.wait()
            self._is_agreed = self._is_agreed or bool(flag.item())

    def _watch(self) -> None:
        if self._is_watching or threading.current_thread() is not threading.main_thread():
            return  # only the main thread may: elsewhere the signal stays what it was
        self._is_watching = True
        self._before = signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._is_given:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._is_given = True
        if callable(self._before):
            self._before(number, frame)
