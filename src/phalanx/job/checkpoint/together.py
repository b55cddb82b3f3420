"""One rank decides, all ranks follow: a decision taken apart would leave a gang with two minds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import torch.distributed as dist

from phalanx.core.errors import PhalanxError, UserError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Refusal:
    """An error on its way to the other ranks: an exception with several arguments does not survive pickling by itself."""

    kind: type[PhalanxError]
    arguments: tuple[object, ...]


def decided_by_rank_zero(decide: Callable[[], T]) -> T:
    """`decide()` as rank 0 answers it, on every rank. A PhalanxError that it raises is raised on every rank."""
    answer: list[object] = [None]
    if dist.get_rank() == 0:
        try:
            answer[0] = decide()
        except UserError as error:
            answer[0] = _Refusal(type(error), (error.field, error.value, error.fix))
        except PhalanxError as error:
            answer[0] = _Refusal(type(error), error.args)
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], _Refusal):
        raise answer[0].kind(*answer[0].arguments)
    return cast(T, answer[0])


def told_by_all(mine: T) -> list[T]:
    """What each rank says, in rank order, on every rank."""
    answers: list[T | None] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, mine)
    return cast(list[T], answers)
