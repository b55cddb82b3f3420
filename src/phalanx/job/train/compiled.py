"""Blocks' training passes compiled, one by one: they are alike, so that one compilation serves all of them.

Hooks stay outside: FSDP gathers a block's weights before what is compiled, and lets go of them after it. What was compiled is found
again by its code, its shapes and the kind of what it is given, not by the module: a survivor that wraps its model anew compiles
nothing. Passes without gradients run as they are: there are few, of other shapes, and each would be compiled anew.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterable
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, Final

import torch
from torch import Tensor, nn

from phalanx.core.errors import SetupError
from phalanx.core.recipe import Switch
from phalanx.job.checkpoint.together import told_by_all
from phalanx.job.models.llama import Block
from phalanx.job.models.moe.mixture import gated, mixtures, summed
from phalanx.job.train.activations import Run, plain

_log: Final = logging.getLogger(__name__)

BACKEND: Final = "inductor"


def compiles(asked: Switch, device: torch.device) -> bool:
    """`auto` where it pays and can be done: a CPU compiles for longer than most runs there take.

    Raises SetupError where it is asked for, and the machine lacks what generated code for GPUs needs."""
    if device.type != "cuda" or asked is False:
        return asked is True
    lacks = _lacking()
    if lacks and asked is True:
        raise SetupError("compile", asked, f"{lacks} is not installed here: install it, or write false")
    if lacks:
        _log.warning("blocks are not compiled: %s is not installed here", lacks)
    return not lacks


def compiled_by_all(asked: Switch, device: torch.device) -> Switch:
    """What `auto` becomes on all ranks alike: compiled code rounds otherwise, and a rank that lacks a compiler would be taken for
    one that computes wrongly. A collective of all ranks."""
    if asked != "auto" or device.type != "cuda":
        return asked
    return all(told_by_all(compiles(asked, device)))


def run_by(blocks: Iterable[nn.Module], runs: Iterable[Run], compile_them: bool, backend: str = BACKEND) -> None:
    """Each block's forward pass becomes its run. Names of parameters stay. To be called before blocks are sharded."""
    for block, run in zip(blocks, runs, strict=True):
        training = _compiled(run, backend) if compile_them else run
        if training is not plain:
            block.forward = partial(_forward, training, block)


def parts_run_compiled(blocks: Iterable[Any], backend: Any = BACKEND) -> None:
    """Of blocks that are no one graph, since they hand tokens on to experts elsewhere: all up to the experts' router; what is
    between an expert's products, of which nobody knows beforehand how many rows it gets; and the sum of what a token's experts
    say. To be called before blocks are sharded."""
    for block in blocks:
        block.attended = partial(_training, Block.attended, _compiled_part(Block.attended, backend), block)
        for mixture in mixtures(block):
            mixture.experts.gated = partial(_training, gated, partial(_of_any_rows, _compiled_part(gated, backend)))
            mixture.summed = partial(_training, summed, _compiled_part(summed, backend))


def _training(part: Callable[..., Any], compiled: Callable[..., Any], *given: Any) -> Any:
    return compiled(*given) if torch.is_grad_enabled() else part(*given)


def _of_any_rows(part: Callable[[Tensor], Tensor], x_nd: Tensor) -> Tensor:
    """Their number alone is a variable of what is compiled: were their width one too, numbers would be read one by one."""
    torch._dynamo.maybe_mark_dynamic(x_nd, 0)
    return part(x_nd)


def _forward(training: Run, block: nn.Module, *given: Any) -> Tensor:
    return training(block, *given) if torch.is_grad_enabled() else plain(block, *given)


def _lacking() -> str:
    """What Triton needs and is not here; it builds a launcher in C for each kernel."""
    if find_spec("triton") is None:
        return "triton"
    compilers = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    return "" if any(name and shutil.which(name) for name in compilers) else "a C compiler"


@cache
def _compiled(run: Run, backend: str) -> Run:
    """By torch's own defaults: parts that wait for other ranks (shared rows, experts elsewhere) run as they are, between compiled
    ones, and numbers of tokens that change from step to step become variables."""
    made: Run = torch.compile(run, backend=backend)
    return made


@cache
def _compiled_part(part: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(part, backend=backend)
    return made
