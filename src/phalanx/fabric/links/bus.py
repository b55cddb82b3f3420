"""Bus bandwidth: a collective's speed as the load that it puts on the links, so that it may be compared with what those carry
whatever the number of ranks. Formulas: NVIDIA's nccl-tests, doc/PERFORMANCE.md.

A size is, as there, that of the whole: the input of all-reduce, reduce-scatter and all-to-all, the output of all-gather.
"""

from collections.abc import Callable, Mapping
from typing import Final

_FACTORS: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


def bus_bytes_per_s(collective: str, num_ranks: int, size_bytes: int, seconds: float) -> float:
    """Raises KeyError for another collective, ValueError for fewer than two ranks or no time."""
    if num_ranks < 2 or seconds <= 0:
        raise ValueError(f"{num_ranks} ranks in {seconds} s have no bus bandwidth")
    return size_bytes / seconds * _FACTORS[collective](num_ranks)
