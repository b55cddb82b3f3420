"""Phalanx: a GPU fabric and ML training platform. `with phalanx.run() as run:` makes a script resumable, measured and watched, see
docs/library.md; `phalanx.client` is the Python SDK. Importing this brings no torch: `run` does, when it is first asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.job.train.library import Run, run

__all__ = ["Run", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("phalanx.job.train.library"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
