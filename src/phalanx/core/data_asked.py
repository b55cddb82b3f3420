"""What `phalanx data prepare` is asked for, from the command line to the job's room."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareAsked:
    """vocab_size None: of the tokenizer that is given, else the usual one. tokenizer None: train one. end_of_document '': the
    usual token. processes None: as many as help."""

    paths: tuple[str, ...]
    out: Path
    vocab_size: int | None = None
    tokenizer: Path | None = None
    end_of_document: str = ""
    text_field: str = "text"
    normalize: Literal["none", "nfc"] = "none"
    min_chars: int = 0
    dedup: bool = False
    processes: int | None = None
    force: bool = False
