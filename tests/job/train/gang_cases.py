"""Many cases in one launch of a gang: a module of functions `case_...`, which every rank calls in turn, and the test beside it."""

import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tests.job.checkpoint.gang_launch import end_gang, start_gang


def cases_of(source: Path) -> list[str]:
    """Their names, without importing it."""
    return re.findall(r"^def (case_\w+)", source.read_text(), re.MULTILINE)


def played(module: str, folder: Path, world_size: int, limit_s: float = 600) -> Path:
    """Runs all cases of a module; its `main` is to call `play`."""
    end_gang(start_gang(["-m", module, str(folder)], folder, world_size, {}), limit_s)
    return folder


Act = Callable[[Callable[..., object], Path], object]
"""Calls a case, with a folder of its own name."""


def play(found: Mapping[str, Any], folder: Path, act: Act, chosen: Sequence[str]) -> None:
    """On each rank, once it is in the gang. found: the module's names.

    Each case that ended well on all ranks has a file. One that fails on any ends them all: the others would wait for it.
    """
    cases = {name: value for name, value in found.items() if name.startswith("case_") and (not chosen or name in chosen)}
    for name, case in cases.items():
        sys.stderr.write(f"{name}\n")
        try:
            act(case, folder / name)
            dist.barrier()
        except Exception:  # noqa: BLE001 (whatever it is)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        (folder / f"{name}.ended").touch()
