"""The audit of a job's folder goes by the newest checkpoint in it."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.core.data_asked import AuditAsked
from phalanx.core.data_audit import Reached
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.manifest import Manifest, Origin
from phalanx.job.checkpoint.shard_file import SaveKey
from phalanx.job.data.cursor import EXTRA, Cursor
from phalanx.job.data.draws import PlainOrder
from phalanx.job.data.open import TokenData, open_data
from phalanx.job.train.audited import audited
from tests.job.data.random_tokens import write_tokens
from tests.job.data.test_deliveries import SEQUENCE, run


@pytest.fixture
def data(tmp_path: Path) -> TokenData:
    write_tokens(tmp_path / "data", [900, 1100])
    return open_data(tmp_path / "data")


def order_of(data: TokenData) -> PlainOrder:
    return PlainOrder(num_samples=data.num_samples("train", SEQUENCE), seed=4, global_batch=8)


def save(checkpoints: Path, data: TokenData, step: int, attempt: int) -> Path:
    """A checkpoint as far as an audit looks at it."""
    extra = {EXTRA: Cursor.after(step, order_of(data), {"data": data.manifest_hash}).to_json()}
    folder = checkpoints / manifest.folder_name(step)
    folder.mkdir(parents=True)
    manifest.commit(folder, Manifest(
        key=SaveKey(step=step, save="s", attempt=f"tiny-lm-7.{attempt}"), extra=extra, dtype="bf16", indexes=(),
        origin=Origin(config="c", data="d", world_size=2, layout={}),
    ))  # fmt: skip
    return folder


def asked(job: Path, **changes: Any) -> AuditAsked:
    return AuditAsked(**{"folder": job, **changes})


def test_records_have_to_reach_the_newest_checkpoint(data: TokenData, tmp_path: Path) -> None:
    job = tmp_path / "job"
    run(job, data, order_of(data), 1, 2, range(12))
    found = audited(asked(job))
    assert (found.complete, found.ended) == (True, False) and found.end.startswith("not known")
    save(job / "checkpoints", data, 8, 1)
    newest = save(job / "checkpoints", data, 12, 1)
    for place in (job, job / "checkpoints", job / "deliveries"):
        found = audited(asked(place))
        assert (found.complete, found.ended, found.end) == (True, True, "the newest checkpoint is of step 12")
    cut = sorted((job / "deliveries").iterdir())[1]
    cut.write_bytes(cut.read_bytes()[:-1])
    found = audited(asked(job))
    assert found.fault is not None and (found.fault.kind, found.fault.step, found.fault.rank) == ("missing", 12, 1)
    (newest / manifest.MANIFEST).write_text("{}")
    found = audited(asked(job))
    assert (found.complete, found.ended, found.steps) == (True, False, 11)
    assert found.end.startswith("the newest checkpoint is of step 8; rank 1 recorded nothing of step 12")
    assert "half a batch" in found.end


def test_checkpoints_of_another_place_count_and_what_was_heard_where_none_is_seen(data: TokenData, tmp_path: Path) -> None:
    job = tmp_path / "job"
    run(job, data, order_of(data), 1, 2, range(12))
    heard = (Reached(by="the newest checkpoint is of", steps=13, attempt=1),)
    assert not audited(asked(job, heard=heard, checkpoints="nowhere://bucket")).complete
    save(tmp_path / "elsewhere", data, 12, 1)
    assert audited(asked(job, heard=heard, checkpoints=str(tmp_path / "elsewhere"))).ended
