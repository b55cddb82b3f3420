"""Prepared folders of random tokens, of any size and without a tokenizer."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data import manifest as manifests
from phalanx.job.data.manifest import FORMAT, MANIFEST, FileEntry, Manifest, SplitCount
from phalanx.job.data.megatron import TokenType
from phalanx.job.data.shard_writer import ShardWriter
from phalanx.storage.hashes import sha256_bytes


def write_tokens(
    folder: Path, sizes: Sequence[int], dtype: TokenType = "uint16", vocab_size: int = 50_000, seed: int = 1, held_out: int = 0
) -> NDArray[np.int64]:
    """A data set of random tokens with a shard of each size for training and so many tokens held out; gives the former end to
    end."""
    folder.mkdir()
    tokens = np.random.default_rng(seed).integers(0, vocab_size, sum(sizes))
    writer, at = ShardWriter(folder, "train", dtype, 1), 0
    for size in sizes:
        writer.add_document(tokens[at : at + size].astype(dtype).tobytes())
        at += size
    tokenizer = b"{}"
    (folder / "tokenizer.json").write_bytes(tokenizer)
    kept = ShardWriter(folder, "held_out", dtype, 1)
    if held_out:
        kept.add_document(np.random.default_rng(seed).integers(0, vocab_size, held_out).astype(dtype).tobytes())
    counted = SplitCount(tokens=held_out, documents=int(held_out > 0), text_bytes=held_out)
    manifest = Manifest(
        format=FORMAT,
        vocab_size=vocab_size,
        dtype=dtype,
        end_of_document=0,
        tokenizer=FileEntry(name="tokenizer.json", size_bytes=len(tokenizer), sha256=sha256_bytes(tokenizer)),
        splits={"train": SplitCount(tokens=at, documents=len(sizes), text_bytes=at), "held_out": counted},
        shards=(*writer.finish(), *kept.finish()),
        sources=(),
        parameters={},
    )
    (folder / MANIFEST).write_bytes(manifests.encode(manifest))
    return tokens
