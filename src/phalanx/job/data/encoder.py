"""A tokenizer as each process uses it: loaded once, by the library that was chosen."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data import tokens
from phalanx.job.data.parity import Choice, fast_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Encoder:
    """Documents to ids, the same ones whichever library is chosen."""

    def __init__(self, tokenizer_json: str, choice: Choice, fast: Any = None) -> None:
        """fast: the fast library's tokenizer, where it is loaded already."""
        self._json = tokenizer_json
        self._theirs: Tokenizer | None = None
        self._fast: Any = None
        self._doubtful = re.compile(f"[{re.escape(choice.doubtful)}]") if choice.doubtful else None
        if choice.engine == "gigatoken":
            self._fast = fast or _fast(tokenizer_json)

    def encode(self, documents: Sequence[bytes]) -> list[NDArray[np.uint32]]:
        """Ids of each document, which is UTF-8, without end marks."""
        if self._fast is not None:
            return [self._slow([one])[0] if self._doubts(one) else self._fast.encode(one) for one in documents]
        return self._slow(documents)

    def _doubts(self, document: bytes) -> bool:
        return self._doubtful is not None and not document.isascii() and self._doubtful.search(document.decode()) is not None

    def _slow(self, documents: Sequence[bytes]) -> list[NDArray[np.uint32]]:
        if self._theirs is None:  # a tenth of a second that most processes never need
            self._theirs = tokens.parse(self._json)
        found = tokens.encode(self._theirs, [document.decode() for document in documents])
        return [np.asarray(ids, dtype=np.uint32) for ids in found]


def _fast(tokenizer_json: str) -> Any:
    import gigatoken

    return gigatoken.Tokenizer.from_json(fast_json(tokenizer_json))
