"""Whether the fast tokenizer library gives the very ids of `tokenizers`, for this vocabulary and this text.

`gigatoken` splits text by a newer Unicode than `tokenizers` may know, so that a letter of last year's standard is a sign to one of
them. A sample cannot show that; so every character that the text holds is tried beside a letter, a digit, a sign and a space, with
a vocabulary made for it, in which a token goes over each border that the two could draw differently.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data import tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Engine = Literal["gigatoken", "tokenizers"]

NASTY: Final = (
    "",
    " ",
    "\n",
    f"{tokens.END_OF_DOCUMENT} a {tokens.END_OF_DOCUMENT}{tokens.END_OF_DOCUMENT}b<|endoftext",
    "<s></s><pad><unk>[CLS] [MASK] <|im_start|>user\n<|im_end|>",
    "one\r\ntwo\r\n\r\n\r\nthree\rfour",
    " \t  x   \t\n   y  \n\n\n  ",
    " " * 3000 + "x" + "\t" * 500 + "\n" * 500,
    "a" * 5000,
    "0123456789" * 300,
    "!?" * 1000,
    "don't I'LL we've HE'S 's'd'Re \u2019s \u017f'\u017f",
    "e\u0301 é \u0928\u093f \u1100\u1161\u11a8 ﬁ Ⅷ ½ ² ١٢٣ ǅ",
    "🐍👩\u200d👩\u200d👧\u200d👦🏳\ufe0f\u200d🌈🇩🇪👍🏽",
    "世界\uff0c你好。こんにちは 안녕하세요 สวัสดี",
    "\u00a0x\u3000y\u2028z\u2029\u0085\u200b\ufeff\u180e",
    "\x01\x02\x7f\x1b[31m\ufffd\U0010ffff\ue000\u0378",
    "\u202eright\u202c مرحبا שלום",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which library encodes. doubtful: characters on which the two differ; texts with one go to `tokenizers`. why: for people, of
    a fallback."""

    engine: Engine
    doubtful: str = ""
    why: str = ""


class Proof:
    """Both libraries with one tokenizer, for which the fast one has passed the hard cases, or `why` says that it did not."""

    def __init__(self, tokenizer_json: str, theirs: "Tokenizer | None" = None) -> None:
        """theirs: that tokenizer, where it is loaded already."""
        self.why = ""
        self._theirs = theirs or tokens.parse(tokenizer_json)
        try:
            import gigatoken

            fields = json.loads(tokenizer_json)
            self._fast = gigatoken.Tokenizer.from_json(_fast_json(fields))
            probe = _probe_json(fields)
            self._fast_probe = gigatoken.Tokenizer.from_json(probe)
            self._probe = tokens.parse(probe)
        except ImportError:
            self.why = "gigatoken is not installed"
            return
        except Exception as error:  # noqa: BLE001  # whatever it cannot load, the other library can
            self.why = f"gigatoken cannot load this tokenizer: {str(error)[:100]}"
            return
        if not self._agree(NASTY):
            self.why = "gigatoken gives other ids for this tokenizer"
        elif any(_doubtful(self._fast_probe, self._probe, range(1, 128))):
            self.why = "gigatoken splits text otherwise than this tokenizer"

    def choose(self, sample: Sequence[bytes], alphabet: NDArray[np.uint32]) -> Choice:
        """sample: some of the very documents. alphabet: every code point beyond ASCII that any document holds."""
        if self.why:
            return Choice("tokenizers", why=self.why)
        if not self._agree([document.decode() for document in sample]):
            return Choice("tokenizers", why="gigatoken gives other ids for this text")
        return Choice("gigatoken", "".join(_doubtful(self._fast_probe, self._probe, alphabet.tolist())))

    def _agree(self, texts: Sequence[str]) -> bool:
        pairs = zip(texts, tokens.encode(self._theirs, texts), strict=True)
        return all(self._fast.encode(text).tolist() == ids for text, ids in pairs)


def choose(tokenizer_json: str, sample: Sequence[bytes], alphabet: NDArray[np.uint32]) -> Choice:
    """Of a tokenizer that is asked once."""
    return Proof(tokenizer_json).choose(sample, alphabet)


def fast_json(tokenizer_json: str) -> str:
    """The tokenizer without its special tokens: gigatoken always finds them in a text, and in a document they are only text."""
    return _fast_json(json.loads(tokenizer_json))


def _fast_json(fields: Mapping[str, Any]) -> str:
    return json.dumps({**fields, "added_tokens": [token for token in fields.get("added_tokens", ()) if not token["special"]]})


_NEIGHBOURS: Final = "a1! "


def _probe_json(fields: Mapping[str, Any]) -> str:
    """The tokenizer's own way to split text over a vocabulary of bytes and of each pair of a byte with a neighbour."""
    model, others = fields["model"], {name: value for name, value in fields.items() if name != "model"}
    if model["type"] != "BPE" or model.get("byte_fallback") or "ByteLevel" not in json.dumps(others):
        raise ValueError("it is no byte-level BPE")
    shown = _shown_bytes()
    near = [shown[ord(neighbour)] for neighbour in _NEIGHBOURS]
    merges = [pair for one in near for byte in shown for pair in ((one, byte), (byte, one))]
    merges = list(dict.fromkeys(merges))
    words = dict.fromkeys([*shown, *("".join(pair) for pair in merges)])
    small = {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": merges}
    return json.dumps({**others, "model": small, "added_tokens": [], "post_processor": None})


def _shown_bytes() -> list[str]:
    """The character by which byte-level vocabularies name each byte: itself where it is printable Latin-1, else one past 255."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def _doubtful(fast: Any, theirs: "Tokenizer", code_points: Sequence[int]) -> Iterator[str]:
    for start in range(0, len(code_points), _PROBED_AT_ONCE):
        characters = [chr(point) for point in code_points[start : start + _PROBED_AT_ONCE]]
        texts = ["".join(f"{near}{one} {one}{near} " for near in _NEIGHBOURS) + f"{one}'s" for one in characters]
        for one, text, ids in zip(characters, texts, tokens.encode(theirs, texts), strict=True):
            if fast.encode(text).tolist() != ids:
                yield one


_PROBED_AT_ONCE: Final = 1000
