"""What was read and is no document: which files, lines and rows, why, and of each file the first one for each reason."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from phalanx.core.errors import DataError

Unfit = Literal["binary", "not_utf8", "unreadable", "empty", "not_json", "no_text", "short", "duplicate"]
"""Why a file, a line or a row is not taken."""

COUNTED: Final[tuple[Unfit, ...]] = ("binary", "not_utf8", "unreadable", "empty", "not_json", "no_text", "short")
"""The manifest has the counts of these, and of duplicates, whose names nobody keeps."""

Firsts = Mapping[Unfit, tuple[str, str]]
"""Of a file: where the first one for each reason is, '' for the file itself, and what is wrong with it."""

_CHARS_MAX: Final = 200
"""Of a reason: libraries quote what they met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """What is not taken of one file, for one reason. source: the given path, as the manifest names it. file: its name below that.
    count: lines or rows, or 1 for the file itself. where: the first one's place in the file, '' for all of it. problem: with it."""

    source: str
    file: str
    why: Unfit
    count: int
    where: str
    problem: str

    def sentence(self) -> str:
        """For people: the first one, and how many more there are."""
        more = f"; and {self.count - 1:,} more in it" if self.count > 1 else ""
        return f"{named(self.file, self.where)} {self.problem}{more}"


Told = Callable[[LeftOut], None]


def named(file: str, where: str) -> str:
    """'byte 12 of a.jsonl', or 'a.txt'."""
    return f"{where} of {file}" if where else file


def reason(error: Exception | str) -> str:
    """What a library said, on one line that is not too long."""
    text = " ".join(str(error).split())
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 3]}..."


class FileByFile:
    """Adds up what pieces of files report, and tells it once for each file: all pieces of one come together."""

    def __init__(self, source: str, told: Told) -> None:
        self.counts: Counter[Unfit] = Counter()
        self.firsts: dict[Unfit, LeftOut] = {}
        self._source, self._told = source, told
        self._file = ""
        self._open: dict[Unfit, LeftOut] = {}

    def add(self, file: str, counts: Mapping[Unfit, int], firsts: Firsts) -> None:
        if file != self._file:
            self.end()
            self._file = file
        for why, count in counts.items():
            self.counts[why] += count
            old = self._open.get(why)
            where, problem = (old.where, old.problem) if old else firsts[why]
            so_far = count + (old.count if old else 0)
            self._open[why] = LeftOut(source=self._source, file=file, why=why, count=so_far, where=where, problem=problem)
            self.firsts.setdefault(why, self._open[why])

    def end(self) -> None:
        """Nothing more of the last file follows."""
        for one in self._open.values():
            self._told(one)
        self._open = {}


def counted(counts: Counter[Unfit]) -> str:
    """'12 binary, 1 not UTF-8', the most first."""
    return ", ".join(f"{count:,} {_WORDS[why]}" for why, count in counts.most_common() if count)


def nothing_left(paths: Iterable[str], found: Iterable[FileByFile], min_chars: int) -> DataError:
    """For inputs of which nothing at all is taken."""
    found = list(found)
    counts = sum((one.counts for one in found), Counter[Unfit]())
    if not counts:
        return DataError("paths", ", ".join(paths), "hold no file; name files with UTF-8 text, or folders of them")
    most = counts.most_common(1)[0][0]
    first = next(one.firsts[most] for one in found if most in one.firsts)
    told = f"{counted(counts)}; {first.sentence()}"
    if most == "short":
        return DataError("min_chars", min_chars, f"leaves no text at all: {told}; lower it, or name longer texts")
    return DataError("paths", ", ".join(paths), f"hold no text to take: {told}; name UTF-8 text")


_WORDS: Final[Mapping[Unfit, str]] = {
    "binary": "binary",
    "not_utf8": "not UTF-8",
    "unreadable": "unreadable",
    "empty": "empty",
    "not_json": "not JSON",
    "no_text": "without the field of text",
    "short": "too short",
    "duplicate": "twice",
}
