"""Arguments from a user's own code, checked where they are given: one error that names the argument, what it was and what it may
be, instead of a bare one deep inside or at the first batch."""

import difflib
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError

if TYPE_CHECKING:
    from phalanx.job.data.manifest import Split

_SAID: Final = {0: "write a whole number, 0 or more", 1: "write a whole number above 0"}
_CHARS_MAX: Final = 80


def shown(value: object) -> object:
    """Of any object, in an error: its type where it says nothing of itself in a word. Texts and numbers stay what they are, since
    an error puts texts into quotes."""
    if isinstance(value, str | int | float) and len(str(value)) <= _CHARS_MAX:
        return value
    text = repr(value)
    return text if len(text) <= _CHARS_MAX and not text.startswith("<") else f"a {type(value).__name__}"


def whole(field: str, value: Any, least: int = 1) -> int:
    """A whole number, also one of NumPy. Raises DataError for a truth value, a fraction, a text, and one that is too small."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise DataError(field, shown(value), _SAID[least])
    if value < least:
        raise DataError(field, int(value), _SAID[least])
    return int(value)


def number_of(field: str, value: Any) -> int:
    """Of a sample, also one of NumPy or PyTorch. Raises DataError for what counts nothing."""
    try:
        return operator.index(value)
    except TypeError:
        raise DataError(field, shown(value), _SAID[0]) from None


def integer(field: str, value: Any) -> int:
    """Any whole number. Raises DataError."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise DataError(field, shown(value), "write a whole number")
    return int(value)


def fraction(field: str, value: Any) -> float:
    """A number. Raises DataError."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise DataError(field, shown(value), "write a number")
    return float(value)


def unknown(field: str, value: Any, known: Sequence[str]) -> DataError:
    """For a name that is none of these."""
    near = difflib.get_close_matches(value, known, n=1, cutoff=0.5) if isinstance(value, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    return DataError(field, shown(value), f"{hint}write one of {', '.join(known)}")


def bad_split(value: Any) -> DataError:
    """For a split that there is not."""
    from phalanx.job.data.manifest import SPLITS  # what processes that prepare do without

    return unknown("split", value, SPLITS)


def split_of(value: Any) -> "Split":
    """Raises DataError."""
    from phalanx.job.data.manifest import SPLITS

    for split in SPLITS:
        if value == split:
            return split
    raise bad_split(value)


def path_of(field: str, value: Any) -> Path:
    """Raises DataError for what is no path, and for an empty one, which would be the folder one stands in."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise DataError(field, shown(value), "name a folder or a file by its path")
    return Path(value)


def rank_of(rank: Any, world_size: Any) -> tuple[int, int]:
    """Raises DataError for a rank outside its world."""
    world_size, rank = whole("world_size", world_size), whole("rank", rank, 0)
    if rank >= world_size:
        raise DataError("rank", rank, f"ranks of a world of {world_size} are 0 to {world_size - 1}")
    return rank, world_size


def steps_of(start: Any, stop: Any) -> tuple[int, int | None]:
    """Raises DataError for steps that would never end, or that end before they begin."""
    start = whole("start", start, 0)
    if stop is not None and whole("stop", stop, 0) < start:
        raise DataError("stop", stop, f"comes before the first step, {start}; write that or more, or None for no end")
    return start, stop


def order_of(order: Any) -> None:
    """Raises DataError for what is no `DataOrder`."""
    if not all(hasattr(order, name) for name in ("names", "sizes", "global_batch", "draws")):
        raise DataError("order", shown(order), "give an order, such as PlainOrder(num_samples=..., seed=..., global_batch=...)")


def callable_of(field: str, value: Any, what: str) -> Callable[..., Any]:
    """Raises DataError for what cannot be called."""
    if not callable(value):
        raise DataError(field, shown(value), f"give a function {what}")
    found: Callable[..., Any] = value
    return found


def state_of(state: Any) -> dict[str, Any]:
    """Raises DataError for what no `state_dict` gave."""
    if not isinstance(state, Mapping):
        raise DataError("state", shown(state), "give what `state_dict` of such a loader gave")
    return dict(state)


def numbers_of(field: str, values: Any) -> NDArray[np.int64]:
    """Numbers of samples in one row. Raises DataError for fractions, which would be cut off unseen, and for tables."""
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise DataError(field, f"{found.dtype.name}{list(found.shape)}", "give whole numbers in one row")
    return found.astype(np.int64, copy=False)


def check_within(what: str, numbers: NDArray[np.int64], count: int) -> None:
    """Raises IndexError for the first of these that lies outside."""
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < count):
        outside = numbers[(numbers < 0) | (numbers >= count)]
        raise IndexError(f"{what} {outside[0]} lies outside [0, {count})")


def names_of(field: str, value: Any) -> None:
    """Raises DataError for one name where several are asked for: it would be taken for a list of its letters."""
    if isinstance(value, str):
        raise DataError(field, value, f"give a list of names, such as [{value!r}]")
