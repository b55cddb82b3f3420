"""What of the inputs is taken as it was asked for, and is most likely not what was meant."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from phalanx.core.units import count_of
from phalanx.job.data.corpus import Found

_OF_RECORDS: Final = (".json", ".csv", ".tsv")
_PACKED: Final = (".gz", ".zst")


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence for people."""

    text: str


def remarks(sources: Sequence[Found]) -> Iterator[Remark]:
    """Of the files by their names alone."""
    names = [file.name for source in sources for file in source.files if _is_of_records(file.name)]
    if names:
        many = f"{count_of(len(names), 'file')} of records (the first is {names[0]})"
        taken = "is one document, syntax and all" if len(names) == 1 else "are one document each, syntax and all"
        yield Remark(f"{many} {taken}; rename to .jsonl what is JSON lines, and write anything else as JSON lines or Parquet")
    for source in sources:
        if source.again:
            files = count_of(source.again, "file")
            yield Remark(
                f"{files} of {source.path} {'is' if source.again == 1 else 'are'} among the paths before it and "
                "taken once; to read data more often, give its source a weight in the job"
            )


def _is_of_records(name: str) -> bool:
    name = name.lower()
    if name.endswith(_PACKED):
        name = name.rpartition(".")[0]
    return name.endswith(_OF_RECORDS)
