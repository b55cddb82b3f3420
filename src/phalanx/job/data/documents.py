"""Where the documents of a split lie, as the indexes of its shards say."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from phalanx.core.errors import DataError
from phalanx.job.data.manifest import REMAKE, Split
from phalanx.job.data.megatron import index_lengths
from phalanx.job.data.open import TokenData

_NONE: Final = np.zeros(0, dtype=np.int32)


def document_lengths(data: TokenData, split: Split) -> NDArray[np.int32]:
    """Tokens of each document of a split, in order, its end mark among them. Reads every index of the split (20 bytes a document)
    and raises DataError for one that is not what `prepare` wrote."""
    found = [_NONE]
    for shard in data.manifest.shards:
        if shard.split != split:
            continue
        lengths = index_lengths(data.small(shard.idx))
        if len(lengths) != shard.documents or int(lengths.sum(dtype=np.int64)) != shard.tokens:
            raise DataError(shard.idx.name, len(lengths), f"does not index the {shard.documents} documents of its shard; {REMAKE}")
        found.append(lengths)
    return np.concatenate(found)
