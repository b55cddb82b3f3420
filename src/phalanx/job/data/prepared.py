"""What `phalanx data prepare` asks for, done, and what it tells of it beside the manifest."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import IO, Any, Final

from phalanx.core import wire
from phalanx.core.data_asked import PrepareAsked
from phalanx.job.data.left_out import LeftOut, Unfit
from phalanx.job.data.left_out_list import listed
from phalanx.job.data.manifest import Manifest
from phalanx.job.data.prepare import PrepareProgress, prepare
from phalanx.job.data.resumed import Resumed
from phalanx.job.data.shown import shown_unread
from phalanx.job.data.tokens import END_OF_DOCUMENT

EXAMPLES: Final = 3
"""Files that are named for each reason."""


def prepared(asked: PrepareAsked, progress: Callable[[str, int, int], None]) -> Mapping[str, Any]:
    """What `shown_unread` says of the folder, with `left_out`: for each reason how many there are and the first few, and `resumed`:
    what of an interrupted run was kept, where there was one."""

    def report(at: PrepareProgress) -> None:
        progress(at.phase, at.done_bytes, at.total_bytes)

    with listed(asked.left_out, asked.out, asked.paths) as file:
        noted = _Noted(file)
        manifest = prepare(
            asked.paths, asked.out, asked.vocab_size, asked.held_out, report, force=asked.force, tokenizer=asked.tokenizer,
            end_of_document=asked.end_of_document or END_OF_DOCUMENT, text_field=asked.text_field, normalize=asked.normalize,
            min_chars=asked.min_chars, dedup=asked.dedup, processes=asked.processes, noted=noted,
        )  # fmt: skip
    return {**shown_unread(asked.out), **noted.plain(manifest)}


class _Noted:
    """Counts, the first few for each reason, and all of them in a file where one is asked for."""

    def __init__(self, listed: IO[str] | None) -> None:
        self._listed = listed
        self._files: Counter[Unfit] = Counter()
        self._counts: Counter[Unfit] = Counter()
        self._examples: dict[Unfit, list[str]] = {}
        self._resumed: Resumed | None = None

    def __call__(self, one: LeftOut | Resumed) -> None:
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
