"""What `phalanx data index`, `pack`, `import-mds`, `import-megatron` and `export-mds` ask for, done."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from phalanx.core.data_asked import ExportMdsAsked, ImportMdsAsked, ImportMegatronAsked, IndexAsked, MadeAsked, PackAsked
from phalanx.core.errors import DataError
from phalanx.job.data.from_megatron import import_megatron
from phalanx.job.data.imported import ImportAsked
from phalanx.job.data.mds.export import export
from phalanx.job.data.mds.read import MdsFolder
from phalanx.job.data.mds.samples import import_samples
from phalanx.job.data.mds.tokens import TokensAsked, import_tokens
from phalanx.job.data.shown import shown_unread
from phalanx.job.data.tars.ingest import index
from phalanx.job.data.tars.pack import ENDINGS, pack
from phalanx.job.data.tokens import END_OF_DOCUMENT

_CLASSES_BYTES_MAX: Final = 64 * 2**20


def make(asked: MadeAsked, progress: Callable[[str, int, int], None]) -> Mapping[str, Any]:
    """What the folder that was made holds. progress: told the stage, and how many bytes are done, of how many."""
    match asked:
        case IndexAsked():
            classes = None if asked.classes is None else _names(asked.classes)
            made = index(asked.paths, asked.out, asked.processes, lambda *at: progress("indexing", *at), asked.force, classes)
        case PackAsked():
            endings = tuple(ending.lower().lstrip(".") for ending in asked.endings) or ENDINGS
            size = asked.shard_mib * 2**20
            made = pack(asked.folder, asked.out, size, endings, lambda *at: progress("packing", *at), asked.force)
        case ImportMdsAsked():
            return _imported(asked, lambda *at: progress("importing", *at))
        case ImportMegatronAsked():
            wanted = ImportAsked(
                tokenizer=asked.tokenizer, end_of_document=asked.end_of_document or END_OF_DOCUMENT, held_out=asked.held_out
            )
            made = import_megatron(asked.prefixes, asked.out, wanted, lambda *at: progress("importing", *at), asked.force)
        case ExportMdsAsked():
            out = export(
                asked.folder,
                asked.out,
                asked.split,
                asked.sequence,
                progress=lambda *at: progress("exporting", *at),
                force=asked.force,
            )
            written = MdsFolder(out)
            shards, samples = len(written.index.shards), written.index.samples
            return {
                "path": str(out),
                "samples": samples,
                "shards": shards,
                "size_bytes": written.size_bytes,
                "columns": written.columns,
            }
    return shown_unread(made)


def _imported(asked: ImportMdsAsked, report: Callable[[int, int], None]) -> Mapping[str, Any]:
    if not asked.tokens:
        if asked.tokenizer is not None:
            raise DataError("tokenizer", str(asked.tokenizer), "is for token ids; name their column with --tokens, or leave it out")
        samples = shown_unread(import_samples(asked.folder, asked.out, progress=report, force=asked.force))
        return {**samples, **_hint(MdsFolder(asked.folder).columns)}
    if asked.tokenizer is None:
        raise DataError("tokenizer", None, "name with --tokenizer the tokenizer.json that the ids are of")
    wanted = TokensAsked(
        column=asked.tokens,
        tokenizer=asked.tokenizer,
        end_of_document=asked.end_of_document or END_OF_DOCUMENT,
        documents=asked.documents or "samples",
        bytes_type=asked.bytes_type,
        held_out=asked.held_out,
    )
    notes: list[str] = []
    noted = None if asked.documents else notes.append
    found = shown_unread(import_tokens(asked.folder, asked.out, wanted, report, asked.force, noted))
    return {**found, "note": "; ".join(filter(None, [found["note"], *notes]))}


def _hint(columns: Mapping[str, str]) -> Mapping[str, str]:
    """Rows of whole numbers are token ids, most often."""
    ids = [name for name, encoding in columns.items() if encoding.startswith(("ndarray:int", "ndarray:uint"))]
    if not ids:
        return {}
    make = f"--tokens {ids[0]} --tokenizer tokenizer.json"
    return {"note": f"column {ids[0]!r} holds arrays of whole numbers; if these are token ids, {make} --force makes token shards"}


def _names(path: Path) -> list[str]:
    try:
        if path.stat().st_size > _CLASSES_BYTES_MAX:
            raise DataError("classes", str(path), "is too large for a list of names; write one class on a line")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise DataError("classes", str(path), f"cannot be read ({reason}); name a file with one class on a line") from error
