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


def train(texts: Iterable[str], vocab_size: int, remark: str = "") -> "Tokenizer":
    """A tokenizer that gives any text back byte for byte; the same texts give the same one.

    Raises DataError when the texts yield fewer than `vocab_size` tokens. remark: said of the text then.
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
            f"the text yields only {found} tokens{remark}; ask for at most that many with --vocab-size, or give more text",
        )
    return tokenizer


def load(path: Path) -> "Tokenizer":
    """The tokenizer of a prepared folder. Raises DataError when the file is none."""
    _library()
    try:
        return parse(path.read_text(encoding="utf-8"))
    except Exception as error:
        raise DataError(path.name, str(path), f"is not a tokenizer ({error}); prepare the data again") from error


def parse(text: str) -> "Tokenizer":
    """The tokenizer of a tokenizer.json's text, set to encode documents whole and as text alone. Raises what the library does."""
    tokenizer: Tokenizer = _library().Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True  # an end mark written in the text itself stays text
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def given(path: Path) -> "Tokenizer":
    """A tokenizer that a user names by its tokenizer.json, or by a folder with one. Raises DataError when there is none."""
    file = path / _FILE if path.is_dir() else path
    if file != path and not file.exists():
        fix = f"is a folder without a {_FILE}; name that file of a fast tokenizer, or a folder that `phalanx data prepare` made"
        raise DataError("tokenizer", str(path), fix)
    try:
        tokenizer = parse(file.read_text(encoding="utf-8"))
    except SetupError:
        raise
    except OSError as error:
        raise DataError(
            "tokenizer", str(path), f"cannot be read ({error.strerror}); name a tokenizer.json, or its folder"
        ) from error
    except Exception as error:
        raise DataError("tokenizer", str(path), f"is not a tokenizer.json of `tokenizers` ({error}); name another") from error
    if (size := vocab_size(tokenizer)) > VOCAB_MAX:
        raise DataError("tokenizer", str(path), f"has token ids up to {size - 1}, over {VOCAB_MAX - 1}; name a smaller one")
    return tokenizer


_FILE: Final = "tokenizer.json"


def vocab_size(tokenizer: "Tokenizer") -> int:
    """One more than the largest id, special tokens among them."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def encode(tokenizer: "Tokenizer", texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, without end marks."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def end_id(tokenizer: "Tokenizer", name: str = END_OF_DOCUMENT) -> int:
    """Token id of the end of a document."""
    found = tokenizer.token_to_id(name)
    if found is None:
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        choice = f"one of its special tokens ({', '.join(special[:_NAMES_SHOWN])})" if special else "one that it has"
        raise DataError("end_of_document", name, f"the tokenizer lacks this token; name {choice} with --end-of-document")
    return int(found)


_NAMES_SHOWN: Final = 10


def library_version() -> str:
    return str(_library().__version__)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise SetupError("tokenizers", "not installed", "run: pip install 'phalanx[train]'") from error
    return tokenizers
