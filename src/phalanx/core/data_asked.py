"""What `phalanx data prepare`, `index`, `pack` and the like are asked for, from the command line to the job's room."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from phalanx.core.data_audit import Reached
from phalanx.core.training_data import DataSource


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAsked:
    """vocab_size None: of the tokenizer that is given, else the usual one. tokenizer None: train one. end_of_document '': the
    usual token. processes None: as many as help. left_out: a file to write what is not taken into, if any."""

    paths: tuple[str, ...]
    out: Path
    vocab_size: int | None = None
    tokenizer: Path | None = None
    end_of_document: str = ""
    held_out: float = 0.05
    text_field: str = "text"
    normalize: Literal["none", "nfc"] = "none"
    min_chars: int = 0
    dedup: bool = False
    processes: int | None = None
    left_out: Path | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAsked:
    """What `phalanx data sample` is asked for: samples of a split by their numbers, or those of a step of a run.

    data: whose samples; with several sources `source` names the one, where no step does. index: numbers of samples; none of them,
    and no step, for the first ones. step: counted from 1, as in a run's metrics, of a run that reads `batch` samples a step in the
    order of `seed`. most: samples shown. ids: also their tokens.
    """

    data: DataSource
    split: Literal["train", "held_out"] = "train"
    sequence: int = 64
    source: str = ""
    index: tuple[int, ...] = ()
    step: int | None = None
    batch: int | None = None
    seed: int = 0
    most: int = 3
    ids: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexAsked:
    """out None: the data set is made where the tars lie. classes None: a file with the name of each class on a line, or none."""

    paths: tuple[str, ...]
    out: Path | None = None
    classes: Path | None = None
    processes: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackAsked:
    """endings (): the usual ones of images."""

    folder: Path
    out: Path
    shard_mib: int
    endings: tuple[str, ...] = ()
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportMdsAsked:
    """tokens '': all columns become samples; else the column of token ids. tokenizer: of these. end_of_document '': the usual
    token. documents: whether a sample is one, or what ends with an end mark; None for the former, and a word where it looks wrong.
    bytes_type: of the ids in a column of bytes."""

    folder: Path
    out: Path
    tokens: str = ""
    tokenizer: Path | None = None
    end_of_document: str = ""
    documents: Literal["samples", "end_marks"] | None = None
    bytes_type: str = ""
    held_out: float = 0.05
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportMdsAsked:
    """sequence None: a sample for each document."""

    folder: Path
    out: Path
    split: Literal["train", "held_out"] = "train"
    sequence: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportMegatronAsked:
    """prefixes: of pairs PREFIX.bin and PREFIX.idx. tokenizer: the tokenizer.json that the ids are of. end_of_document '': ours."""

    prefixes: tuple[Path, ...]
    out: Path
    tokenizer: Path
    end_of_document: str = ""
    held_out: float = 0.05
    force: bool = False


MadeAsked = IndexAsked | PackAsked | ImportMdsAsked | ExportMdsAsked | ImportMegatronAsked


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditAsked:
    """folder: a job's, or one of the records. contents: compare every sample too. checkpoints: where the job saves; '' is beside
    the records. reached: how far the job came. heard: its newest checkpoint, by who heard of it, for where none can be seen.
    none: why there may be no records; '' where nobody knows."""

    folder: Path
    contents: bool = True
    checkpoints: str = ""
    reached: tuple[Reached, ...] = ()
    heard: tuple[Reached, ...] = ()
    none: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeseeAsked:
    """The data of a job that is about to be submitted. env: what the job itself gives its ranks,
    such as the address of a store.

    sequence: tokens of a recipe's rows; 0 of a script, of which nobody knows what it reads. held_out: samples of one held-out batch
    over all ranks. images: samples at the end that a recipe
    of images does not train on; None of another one, or of a script. classes: that it asks for; 0 for those that the data names.
    """

    data: DataSource
    env: Mapping[str, str]
    sequence: int = 0
    held_out: int = 0
    images: int | None = None
    classes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixAsked:
    """The run of which `phalanx data mix` says what it will read. batch: samples of one step over all ranks. first: of the first so
    many steps the shares are given apart."""

    data: DataSource
    sequence: int
    seed: int
    batch: int
    steps: int
    first: int = 100
