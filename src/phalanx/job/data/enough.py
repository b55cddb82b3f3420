"""What a run needs of its data: one tokenizer, a row of each source, rows that are held out. Pure.

`submit`, `data mix` and ranks say it in the same words.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from phalanx.core.errors import DataError
from phalanx.core.training_data import Packing
from phalanx.job.data.manifest import HELD_OUT_MAX, Manifest, Split
from phalanx.job.data.megatron import WIDTHS

_SHOWN: Final = 12
_SHARE_LEAST: Final = 0.01
"""Of a few documents a smaller share is none of them."""
_MARGIN: Final = 1.5
_PREPARE: Final = "`phalanx data prepare --tokenizer`"


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows a split has, as far as its manifest tells: all of documents end to end, bounds of whole documents."""

    least: int
    most: int


def rows_of(manifest: Manifest, split: Split, sequence: int, packing: Packing) -> Rows:
    """A row holds sequence + 1 tokens; of whole documents each may leave one row that is not full."""
    count = manifest.splits[split]
    if packing == "concatenate":
        rows = max(0, (count.tokens - 1) // sequence)
        return Rows(rows, rows)
    width = sequence + 1
    return Rows(-(-count.tokens // width), min(count.tokens, count.tokens // width + count.documents))


def largest_shard(manifest: Manifest) -> tuple[int, str]:
    """Its bytes of tokens and its file: what a node's cache must have room for."""
    return max((shard.bin_bytes, shard.bin.name) for shard in manifest.shards)


def window_bytes(window: int, rows: Mapping[str, int], manifests: Mapping[str, Manifest], sequence: int) -> int:
    """Of what a shuffle by blocks mixes at once, of `window` samples of each source that has so many."""
    return sum(min(window, rows[name]) * sequence * WIDTHS[manifests[name].dtype] for name in rows)


def check_tokenizers(manifests: Mapping[str, Manifest]) -> None:
    """By the name of the source. Raises DataError for the first whose tokens are not those of the first."""
    name = next(iter(manifests), "")
    for other, manifest in manifests.items():
        if _tokens_of(manifest) != _tokens_of(manifests[name]):
            fix = f"is not that of {name} ({_shown(manifests[name])}); prepare all sources with one: {_PREPARE}"
            raise DataError(f"tokenizer of {other}", _shown(manifest), fix)


def check_train(name: str, samples: int, sequence: int, place: object) -> None:
    """Raises DataError for a source without a row to train on."""
    if not samples:
        fix = f"not one row of {sequence} tokens in {place}; prepare more text or shorten `sequence`"
        raise DataError(f"train samples of {name}", 0, fix)


def held_out_share(manifests: Iterable[Manifest]) -> float | None:
    """That the sources were prepared with, the largest of them; None where no manifest says one."""
    said = (manifest.parameters.get("held_out") for manifest in manifests)
    return max((share for share in said if isinstance(share, int | float) and share > 0), default=None)


def check_held_out(tokens: Mapping[Split, int], samples: int, sequence: int, batch: int, share: float | None) -> None:
    """Of all sources together. batch: samples of one held-out batch over all ranks. share: see `held_out_share`. Raises DataError
    for fewer samples, which says what would give enough."""
    if not tokens["held_out"]:
        fix = (
            "nothing is held out, and a recipe is scored on held-out text: make the data again with a share of it held out, or "
            "leave the held-out loss out with `eval_batches: 0`"
        )
        raise DataError("held-out tokens", 0, fix)
    if samples < batch:
        needed = _share_needed(batch * sequence + 1, tokens, share)
        again = f"prepare the data again with `--held-out {needed:g}`" if needed <= HELD_OUT_MAX else "prepare more text"
        fix = (
            f"one held-out batch takes {batch} samples of {sequence} tokens; {again}, lower `sequence` or `batch_per_rank`, or "
            "leave the held-out loss out with `eval_batches: 0`"
        )
        raise DataError("held-out samples", samples, fix)


def check_images(samples: int, held_out: int, batch: int) -> None:
    """Of a data set. batch: samples of one held-out batch over all ranks. Raises DataError where nothing is left to train on, or
    not one held-out batch is kept."""
    if held_out >= samples:
        fix = f"the data has {samples} samples, and some are to be trained on; write less"
        raise DataError("held_out", held_out, fix)
    if held_out < batch:
        fix = f"one held-out batch takes {batch} samples; write at least that, lower `batch_per_rank`, or write `eval_batches: 0`"
        raise DataError("held_out", held_out, fix)


def _share_needed(wanted: int, tokens: Mapping[Split, int], share: float | None) -> float:
    """From what the share there is has given: it is one of documents, drawn by lot, and a few may hold far fewer tokens than that.
    With a margin, in two digits; above what there is, also where there are tokens enough and not rows, as of whole documents."""
    held = tokens["held_out"]
    present = share if share is not None else held / sum(tokens.values())
    needed = max(_SHARE_LEAST, _MARGIN * present * max(1.0, wanted / held))
    unit = 10.0 ** (math.floor(math.log10(needed)) - 1)
    return math.ceil(needed / unit) * unit


def _tokens_of(manifest: Manifest) -> tuple[int, int, str]:
    return manifest.vocab_size, manifest.end_of_document, manifest.tokenizer.sha256


def _shown(manifest: Manifest) -> str:
    return f"{manifest.vocab_size} tokens, SHA-256 {manifest.tokenizer.sha256[:_SHOWN]}"
