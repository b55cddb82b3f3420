"""What becomes of each document, as numbers that fit into arrays and messages."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError

OUT: Final = 0
TRAIN: Final = 1
HELD_OUT: Final = 2
CUT: Final = 3
"""Nothing, one of the splits, or the start of it to train on and its end held out."""

Kinds = NDArray[np.uint8]


def halves(document: bytes, held_out: float) -> tuple[bytes, bytes]:
    """A lone document in two, the end at a line's start where there is one."""
    at = int(len(document) * (1 - held_out))
    at = document.rfind(b"\n", 0, at) + 1 or at
    while 0 < at < len(document) and document[at] & 0xC0 == 0x80:  # not inside a character
        at -= 1
    if not 0 < at < len(document):
        raise DataError("paths", "the text", "is one document too short to hold any of it out; give more text")
    return document[:at], document[at:]
