"""An image of a class as a row of whole numbers, so that whatever handles rows of tokens handles images too.

A row is int64: the number of the class, the XXH3 of the sample's fields as they came, and the pixels' bytes [3, y, x], eight to a
word.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data.images.decode import Pixels
from phalanx.job.data.samples import Rows

LABEL: Final = 0
CONTENT: Final = 1
FIRST: Final = 2
"""Word of the pixels."""
_WORD_BYTES: Final = 8
_CHANNELS: Final = 3


def words_of(side: int) -> int:
    """Of a row with an image of so many pixels a side."""
    return FIRST + -(-pixels_of(side) // _WORD_BYTES)


def pixels_of(side: int) -> int:
    """Bytes of an image."""
    return _CHANNELS * side * side


def fill(row: Rows, label: int, content: int, pixels: Pixels) -> None:
    row[LABEL] = label
    row[CONTENT] = np.uint64(content).astype(np.int64)
    row[-1] = 0  # the last word may have room for more bytes than there are
    row[FIRST:].view(np.uint8)[: pixels.size] = pixels.reshape(-1)


def contents(rows: Rows) -> NDArray[np.uint64]:
    """Of each row, what came of its sample."""
    return rows[:, CONTENT].astype(np.uint64)
