"""Small texts in many files, one tokenizer for them, and folders compared byte for byte."""

import json
from collections.abc import Iterable
from pathlib import Path

from phalanx.job.data.open import open_data


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_texts(folder: Path, files: int, lines: int) -> Path:
    """Files of about 60 bytes a line, no two alike."""
    folder.mkdir(parents=True)
    for number in range(files):
        text = "".join(
            f"file {number} says in line {line} that {number * line} is {'odd' * (line % 3)} é\n" for line in range(lines)
        )
        (folder / f"{number:04d}.txt").write_text(text)
    return folder


def write_jsonl(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts_of(folder: Path) -> dict[str, list[str]]:
    """The documents of each split, decoded, by their order."""
    from phalanx.job.data import tokens

    data = open_data(folder)
    tokenizer = tokens.load(folder / "tokenizer.json")
    found = {}
    for split in ("train", "held_out"):
        stems = sorted(path for path in folder.glob(f"{split}-*.bin"))
        ids = [token for stem in stems for token in _ids(stem, data.manifest.dtype)]
        found[split] = _documents(ids, data.end_of_document, tokenizer)
    return found


def _ids(path: Path, dtype: str) -> list[int]:
    import numpy as np

    return np.fromfile(path, dtype={"uint16": "<u2", "int32": "<i4"}[dtype]).tolist()  # type: ignore[no-any-return]


def _documents(ids: list[int], end: int, tokenizer: object) -> list[str]:
    documents: list[list[int]] = [[]]
    for token in ids:
        if token == end:
            documents.append([])
        else:
            documents[-1].append(token)
    return [tokenizer.decode(document, skip_special_tokens=False) for document in documents[:-1]]  # type: ignore[attr-defined]
