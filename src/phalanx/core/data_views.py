"""What a model reads, as the data room says it and the command line shows it."""

from collections.abc import Mapping
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

    sample: its number in the source. position: number of the global sample, and epoch of the source, both counted from 0, where
    samples of a step were asked for.
    """

    source: str
    sample: int
    pieces: tuple[PieceView, ...]
    padding: int = 0
    position: int | None = None
    epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledView:
    """A source of samples. samples: of its split."""

    path: str
    manifest_hash: str
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesView:
    """Samples as a model would read them. sources: by name. left_out: asked for, beyond those shown. note: what could not be shown,
    and why; else ''."""

    split: str
    sequence: int
    packing: str
    sources: Mapping[str, SampledView]
    samples: tuple[SampleView, ...]
    step: int | None = None
    batch: int | None = None
    seed: int | None = None
    left_out: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSourceView:
    """One source of a run. Shares are parts of all samples, 0 to 1.

    tokens, samples: of its training split. asked: its share before any change. first: what it gets of the first steps. whole: of
    the run, which reads `read` of its samples, `epochs` times all of them. next_epochs: after how many steps of the run its second
    epoch begins, its third, and so on, the first of them.
    """

    name: str
    path: str
    tokens: int
    samples: int
    asked: float
    first: float
    whole: float
    read: int
    epochs: float
    next_epochs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixWeightsView:
    """The weights that are in force from `after_step` steps on, for `steps` of them. asked: each source's share. read: samples."""

    after_step: int
    steps: int
    asked: Mapping[str, float]
    read: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixView:
    """What a run will read. first: how many steps the sources' `first` is about. weights: at the start, and after each change.
    parts: the run in equal parts, and the share that each source has in it. warnings: sentences."""

    steps: int
    batch: int
    sequence: int
    seed: int
    packing: str
    first: int
    sources: tuple[MixSourceView, ...]
    weights: tuple[MixWeightsView, ...]
    parts: Mapping[str, tuple[float, ...]]
    warnings: tuple[str, ...] = ()
