"""Chooses the text that the tokenizer is trained on, and reads it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from phalanx.job.data.crew import Crew
from phalanx.job.data.file_pieces import Piece
from phalanx.job.data.kinds import halves
from phalanx.job.data.object_files import changed
from phalanx.job.data.survey import Survey
from phalanx.job.data.texts import Reading, begun, parts


@dataclass(frozen=True, slots=True)
class Pick:
    """A task: documents of a piece by their numbers in it, of each at most `bytes_max`. held_out: cut off each of them, else 0."""

    piece: Piece
    reading: Reading
    numbers: Sequence[int]
    bytes_max: int
    held_out: float


def pick(task: Pick) -> list[str]:
    """The texts of a task; fewer than were asked for when the file is not what it was."""
    found = _documents(task.piece, task.reading, task.numbers)
    if task.held_out:
        found = [halves(document, task.held_out)[0] for document in found]
    return [document.decode()[: task.bytes_max] for document in found]  # characters: a little over is fine


def _documents(piece: Piece, reading: Reading, numbers: Sequence[int]) -> list[bytes]:
    """Those of a piece, in the order of the numbers; no more is read than must be."""
    wanted, found, at = set(numbers), {}, 0
    for texts in parts(piece, reading, begun([piece])[0]):
        found.update({at + number: one for number, one in enumerate(texts.documents) if at + number in wanted})
        at += len(texts.documents)
        if len(found) == len(wanted):
            break
    return [found[number] for number in numbers if number in found]


def only_document(survey: Survey, reading: Reading) -> bytes:
    """The one document that there is. Raises DataError when it is gone."""
    number = int(survey.of("train")[0])
    owner = int(survey.first.searchsorted(number, side="right")) - 1
    piece = survey.pieces[owner]
    for document in _documents(piece, reading, [number - int(survey.first[owner])]):
        return document
    raise changed(piece.file)


def sample(
    survey: Survey, reading: Reading, bytes_max: int, held_out: float, crew: Crew, seen: Callable[[int, int], None]
) -> list[str]:
    """Training documents up to `bytes_max` by the hashes of their names, a choice that the order of the paths does not change.

    seen(bytes read, bytes in all).
    """
    chosen = _chosen(survey, bytes_max)
    total = int(min(bytes_max, survey.sizes[chosen].sum()))
    tasks, places = _tasks(survey, chosen, reading, bytes_max, held_out)
    texts = [""] * len(chosen)
    done = 0
    for place, found in zip(places, crew.map(pick, tasks), strict=True):
        for number, text in zip(place, found, strict=False):
            texts[number] = text
        done += int(survey.sizes[chosen[place]].sum())
        seen(min(done, total), total)
    if texts:
        over = int(survey.sizes[chosen].sum()) - total
        texts[-1] = texts[-1][: int(survey.sizes[chosen[-1]]) - over] if over > 0 else texts[-1]
    return texts


def _chosen(survey: Survey, bytes_max: int) -> NDArray[np.int64]:
    """The numbers of the documents, in the order of the hashes of their names."""
    train = survey.of("train")
    digests = survey.digests[train]
    ordered = train[np.lexsort((digests["low"], digests["high"], survey.keys[train]))]
    before = np.cumsum(survey.sizes[ordered]) - survey.sizes[ordered]
    return ordered[before < bytes_max]


def _tasks(
    survey: Survey, chosen: NDArray[np.int64], reading: Reading, bytes_max: int, held_out: float
) -> tuple[list[Pick], list[NDArray[np.int64]]]:
    """One for each piece, in order, and which of the chosen ones each of them reads."""
    by_number = np.argsort(chosen)
    owners = np.searchsorted(survey.first, chosen[by_number], side="right") - 1
    tasks, places = [], []
    for owner in np.unique(owners):
        place = by_number[owners == owner]
        numbers = (chosen[place] - survey.first[owner]).tolist()
        tasks.append(Pick(survey.pieces[owner], reading, numbers, bytes_max, held_out if survey.lone else 0.0))
        places.append(place)
    return tasks, places
