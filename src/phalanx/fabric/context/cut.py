"""How the tokens of a row are cut over the ranks that share it, and which cuts there are."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from phalanx.core.errors import SpecError
from phalanx.core.spec import ContextKind

Ints = NDArray[np.int64]
KINDS: Final[tuple[ContextKind, ...]] = ("ring", "ulysses")
"""ring: keys and values go round the ranks, each of which attends with all heads of its own tokens (arXiv:2310.01889). ulysses: for
the attention each rank gets all tokens of some heads (arXiv:2309.14509)."""

Problem = tuple[str, object, str]
"""Field, value, what to change."""


@dataclass(frozen=True, slots=True)
class ContextCut:
    """tokens: of a row. ranks: that share it; each has as many of them.

    ring: a row is 2 x ranks chunks, and rank r has the r-th from either end: early tokens see little and late ones much, so that
    all ranks have the same work in each round. ulysses: one run of tokens a rank, since work is shared by heads.
    """

    kind: ContextKind
    tokens: int
    ranks: int

    def problems(self) -> list[Problem]:
        """Why such a row cannot be cut like that; empty when it can."""
        if self.kind not in KINDS:
            return [("context kind", self.kind, f"write one of {', '.join(KINDS)}")]
        if self.ranks < 1:
            return [("cp", self.ranks, "write 1 or more")]
        pieces = self.ranks * self._chunks
        if self.tokens > 0 and self.tokens % pieces == 0:
            return []
        below = max(self.tokens, 0) // pieces * pieces
        near = [str(tokens) for tokens in (below, below + pieces) if tokens > 0]
        fix = f"cp {self.ranks} by {self.kind} cuts it into {pieces} equal pieces; write a multiple of {pieces}, such as "
        return [("sequence", self.tokens, fix + " or ".join(near))]

    def check(self) -> None:
        """Raises SpecError of the first problem."""
        _raise_first(self.problems())

    @property
    def local(self) -> int:
        """Tokens that a rank has of a row."""
        return self.tokens // self.ranks

    def spans(self, rank: int) -> tuple[tuple[int, int], ...]:
        """What a rank has, as (first, one past the last), in the order in which it holds them."""
        size = self.local // self._chunks
        chunks = (rank, 2 * self.ranks - 1 - rank) if self._chunks == 2 else (rank,)
        return tuple((chunk * size, (chunk + 1) * size) for chunk in chunks)

    def positions(self, rank: int) -> Ints:
        """The place in the row of each token of a rank, ascending: int64 [local]."""
        return np.concatenate([np.arange(start, stop) for start, stop in self.spans(rank)])

    def before(self, rank: int, places: ArrayLike) -> Ints:
        """How many of a rank's tokens lie before each place in the row."""
        at = np.asarray(places, dtype=np.int64)
        counted = [(at - start).clip(0, stop - start) for start, stop in self.spans(rank)]
        found: Ints = np.stack(counted).sum(axis=0)
        return found

    @property
    def _chunks(self) -> int:
        return 2 if self.kind == "ring" and self.ranks > 1 else 1


def head_problems(kind: ContextKind, heads: int, kv_heads: int, ranks: int) -> list[Problem]:
    """Why that many ranks cannot share the heads; empty when they can. kv_heads: of keys and values, each for heads / kv_heads."""
    if ranks > 0 and _shares_heads(kind, heads, kv_heads, ranks):
        return []
    fitting = ", ".join(map(str, fitting_ranks(kind, heads, kv_heads)))
    fix = f"ulysses shares {heads} heads and {kv_heads} of keys and values evenly; write one of {fitting}, or use ring"
    return [("cp", ranks, fix if ranks > 0 else "write 1 or more")]


def check_heads(kind: ContextKind, heads: int, kv_heads: int, ranks: int) -> None:
    """Raises SpecError of the first problem."""
    _raise_first(head_problems(kind, heads, kv_heads, ranks))


def fitting_ranks(kind: ContextKind, heads: int, kv_heads: int, ranks_max: int | None = None) -> list[int]:
    """All numbers of ranks that can share the heads, up to `ranks_max`, else up to one a head."""
    return [ranks for ranks in range(1, (ranks_max or heads) + 1) if _shares_heads(kind, heads, kv_heads, ranks)]


def _shares_heads(kind: ContextKind, heads: int, kv_heads: int, ranks: int) -> bool:
    """Where there are more ranks than heads of keys and values, several ranks get the same one."""
    return kind == "ring" or (heads % ranks == 0 and (kv_heads % ranks == 0 or ranks % kv_heads == 0))


def _raise_first(problems: list[Problem]) -> None:
    if problems:
        raise SpecError(*problems[0])
