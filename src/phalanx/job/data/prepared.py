"""What `phalanx data prepare` asks for, done, and what it tells of it beside the manifest."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from phalanx.core import wire
from phalanx.core.data_asked import PrepareAsked
from phalanx.core.errors import DataError
from phalanx.job.data.left_out import LeftOut, Unfit
from phalanx.job.data.manifest import Manifest
from phalanx.job.data.place import check_apart, not_made
from phalanx.job.data.prepare import PrepareProgress, Resumed, prepare
from phalanx.job.data.remarks import Remark
from phalanx.job.data.shown import shown_unread
from phalanx.job.data.tokens import END_OF_DOCUMENT

EXAMPLES: Final = 3
"""Files that are named for each reason."""

_BEGIN: Final = b'{"source": '


def prepared(asked: PrepareAsked, progress: Callable[[str, int, int], None]) -> Mapping[str, Any]:
    """What `shown_unread` says of the folder, with remarks in its `note`, and `left_out`: for each reason how many there are and
    the first few, and `resumed`: what of an interrupted run was kept, where there was one."""

    def report(at: PrepareProgress) -> None:
        progress(at.phase, at.done_bytes, at.total_bytes)

    with _listed(asked.left_out, asked.paths) as listed:
        noted = _Noted(listed)
        manifest = prepare(
            asked.paths, asked.out, asked.vocab_size, asked.held_out, report, force=asked.force, tokenizer=asked.tokenizer,
            end_of_document=asked.end_of_document or END_OF_DOCUMENT, text_field=asked.text_field, normalize=asked.normalize,
            min_chars=asked.min_chars, dedup=asked.dedup, processes=asked.processes, noted=noted,
        )  # fmt: skip
    found = shown_unread(asked.out)
    return {**found, **noted.plain(manifest), "note": ". ".join(filter(None, [*noted.remarks, found["note"]]))}


class _Noted:
    """Counts, the first few for each reason, and all of them in a file where one is asked for."""

    def __init__(self, listed: IO[str] | None) -> None:
        self._listed = listed
        self._files: Counter[Unfit] = Counter()
        self._counts: Counter[Unfit] = Counter()
        self._examples: dict[Unfit, list[str]] = {}
        self._resumed: Resumed | None = None
        self.remarks: list[str] = []

    def __call__(self, one: LeftOut | Resumed | Remark) -> None:
        if isinstance(one, Remark):
            self.remarks.append(one.text)
            return
        if isinstance(one, Resumed):
            self._resumed = one
            return
        self._files[one.why] += 1
        self._counts[one.why] += one.count
        examples = self._examples.setdefault(one.why, [])
        if len(examples) < EXAMPLES:
            examples.append(one.sentence())
        if self._listed is not None:
            self._listed.write(json.dumps(wire.plain(LeftOut, one)) + "\n")

    def plain(self, manifest: Manifest) -> dict[str, Any]:
        left_out: dict[str, Any] = {
            why: {"count": self._counts[why], "files": self._files[why], "examples": examples}
            for why, examples in self._examples.items()
        }
        if twice := sum(source.skipped_duplicate for source in manifest.sources):
            left_out["duplicate"] = {"count": twice}
        return {"left_out": left_out, "resumed": None if self._resumed is None else wire.plain(Resumed, self._resumed)}


@contextmanager
def _listed(path: Path | None, paths: Sequence[str]) -> Iterator[IO[str] | None]:
    """The file, open to be written. Raises DataError for one that would be among the inputs, or that is something else."""
    if path is None:
        yield None
        return
    check_apart(path.resolve(), paths, "left_out")
    try:
        if path.exists() and not _is_list(path):
            raise DataError("left_out", str(path), "is a file that no `--left-out` made; name another")
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise not_made("left_out", path, error) from error
    with file:
        yield file


def _is_list(path: Path) -> bool:
    with path.open("rb") as file:
        begin = file.read(len(_BEGIN))
    return not begin or begin == _BEGIN
