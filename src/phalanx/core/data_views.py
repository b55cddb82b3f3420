"""What a model reads, as the data room says it and the command line shows it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceView:
    """A stretch of one document in a sample.

    document: its number in the split. start: the stretch's first token, counted in the document, which has `document_tokens`.
    text: all of the stretch decoded, special tokens among it; characters that it cuts are U+FFFD. ids: only when asked for.
    """

    document: int
    start: int
    tokens: int
    document_tokens: int
    text: str
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleView:
    """One sample: `sequence` + 1 tokens, of which the last is a target only. padding: of them, at the end, no token at all.

    position: number of the global sample, and epoch, both counted from 0, where samples of a step were asked for.
    """

    sample: int
    pieces: tuple[PieceView, ...]
    padding: int = 0
    position: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesView:
    """Samples as a model would read them. num_samples: of the split. left_out: asked for, beyond `most`. note: what could not be
    shown, and why; else ''."""

    path: str
    manifest_hash: str
    split: str
    sequence: int
    packing: str
    num_samples: int
    samples: tuple[SampleView, ...]
    step: int | None = None
    batch: int | None = None
    seed: int | None = None
    left_out: int = 0
    note: str = ""
