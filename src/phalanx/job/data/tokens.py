"""Byte-level BPE with Hugging Face `tokenizers`, which lives in the extra `train` and is imported only where it is used."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from phalanx.core.errors import DataError, SetupError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

END_OF_DOCUMENT: Final = "<|endoftext|>"
VOCAB_MIN: Final = 257
"""Every byte, and the end of a document."""

VOCAB_MAX: Final = 1_000_000


def train(texts: Iterable[str], vocab_size: int) -> "Tokenizer":
    """A tokenizer that gives any text back byte for byte; the same texts give the same one.

    Raises DataError when the texts yield fewer than `vocab_size` tokens.
    """
    library = _library()
    tokenizer: Tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_DOCUMENT],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    tokenizer.encode_special_tokens = True  # an end mark written in the text itself stays text
    found = tokenizer.get_vocab_size()
    if found < vocab_size:
        raise DataError(
            "vocab_size",
            vocab_size,
            f"the text yields only {found} tokens; ask for at most that many with --vocab-size, or give more text",
        )
    return tokenizer


def load(path: Path) -> "Tokenizer":
    """The tokenizer of a prepared folder. Raises DataError when the file is none."""
    library = _library()
    try:
        tokenizer: Tokenizer = library.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise DataError(path.name, str(path), f"is not a tokenizer ({error}); prepare the data again") from error
    tokenizer.encode_special_tokens = True
    return tokenizer


def encode(tokenizer: "Tokenizer", texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, without end marks."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def end_id(tokenizer: "Tokenizer") -> int:
    """Token id of the end of a document."""
    found = tokenizer.token_to_id(END_OF_DOCUMENT)
    if found is None:
        raise DataError("tokenizer", END_OF_DOCUMENT, "the tokenizer lacks this token; prepare the data again")
    return found


def library_version() -> str:
    return str(_library().__version__)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise SetupError("tokenizers", "not installed", "run: pip install 'phalanx[train]'") from error
    return tokenizers
