"""One rank decides, all ranks follow: a decision taken apart would leave a gang with two minds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import torch.distributed as dist

from phalanx.core.errors import Bug, PhalanxError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error on its way to the other ranks."""

    error: PhalanxError


def decided_by_rank_zero(decide: Callable[[], T]) -> T:
    """`decide()` as rank 0 answers it, on every rank; no rank is left waiting for an answer that never comes.

    A PhalanxError that it raises is raised on every rank. Anything else is raised as it is on rank 0 and as a Bug on the others.
    """
    if dist.get_rank() != 0:
        return cast(T, _heard())
    try:
        answer = decide()
    except PhalanxError as error:
        _tell(_Failure(error))
        raise
    except Exception as error:
        _tell(_Failure(Bug(f"rank 0 failed: {type(error).__name__}: {error}")))
        raise
    _tell(answer)
    return answer


def _heard() -> object:
    answer: list[object] = [None]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], _Failure):
        raise answer[0].error
    return answer[0]


def _tell(answer: object) -> None:
    dist.broadcast_object_list([answer], src=0)


def told_by_all(mine: T) -> list[T]:
    """What each rank says, in rank order, on every rank."""
    answers: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, mine)
    return cast(list[T], answers)
