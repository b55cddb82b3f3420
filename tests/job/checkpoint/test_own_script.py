"""The script of docs/checkpoints.md, as a reader would run it: alone, killed by nobody, and resumed by a gang of another size."""

import re
from pathlib import Path

from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.folder import Folder
from phalanx.job.checkpoint.retention import remove
from phalanx.job.checkpoint.whole import verify
from tests.job.checkpoint.gang_launch import ROOT, end_gang, logs, start_gang

_SCRIPT = re.compile(r"```python\n(.*?)```", re.DOTALL)


def run(script: Path, job: Path, number: int, ranks: int, root: Folder) -> str:
    """What rank 0 prints."""
    folder = job / f"launch-{number}"
    where = {"PHALANX_JOB_DIR": str(job), "PHALANX_CHECKPOINTS": str(root) if "://" in str(root) else ""}
    env = {**where, "PHALANX_CHECKPOINT_EVERY": "5", "PHALANX_CHECKPOINT_KEEP_LAST": "3"}
    assert end_gang(start_gang([str(script)], folder, ranks, env)) == [0] * ranks, logs(folder)
    return (folder / "rank-0.log").read_text().strip()


def test_the_documented_script_saves_and_resumes_on_another_number_of_ranks(tmp_path: Path, root: Folder) -> None:
    found = _SCRIPT.search((ROOT / "docs" / "checkpoints.md").read_text())
    assert found is not None
    script = tmp_path / "train.py"
    script.write_text(found[1])
    whole = run(script, tmp_path, 1, 2, root)
    assert re.fullmatch(r"from 0 to 20: -?0x1\.[0-9a-f]+p[-+]\d+", whole), whole
    kept = manifest.committed(root)
    assert [step for step, _ in kept] == [20, 15, 10]
    assert {shard.rank for shard in verify(kept[0][1]).shards if len(shard.parts) > 1} == {0, 1}  # both write what both have
    remove([kept[0][1]])
    assert run(script, tmp_path, 2, 1, root) == whole.replace("from 0", "from 15")
