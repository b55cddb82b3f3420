"""The recovery benchmark starts a gang under its own shim, and says what it measured in its last line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


CLAIMS = {
    "spare": ["spare_cold_s", "spare_steps_lost", "spare_unnoticed", "spare_bitwise"],
    "agent": ["agent_steps_lost", "agent_gap_s", "agent_back_s", "agent_unnoticed"],
}


@pytest.mark.parametrize("only", CLAIMS)
def test_one_claim_in_its_quick_form_is_one_json_line_and_leaves_nothing(tmp_path: Path, only: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "recovery.py"), "--quick", "--only", only],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1) and done.stdout, done.stderr  # 1: a claim that does not hold
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["benchmark"] == "recovery" and last["conditions"]["cores"] >= 1
    claims = {claim["id"]: claim for claim in last["claims"]}
    assert list(claims) == CLAIMS[only]
    assert claims[f"{only}_unnoticed"]["ours"] and claims.get("spare_bitwise", {"ours": True})["ours"]
    assert claims[f"{only}_steps_lost"]["ours"] <= (only == "spare")
    assert claims["spare_cold_s" if only == "spare" else "agent_gap_s"]["ours"] > 0
    assert all(claim["holds"] for claim in claims.values()) == (done.returncode == 0)
    assert list(tmp_path.glob("phalanx-*")) == []
    marks = [path for path in Path("/proc").glob("[0-9]*/environ") if carries(path, str(tmp_path).encode())]
    assert marks == []


def carries(environ: Path, folder: bytes) -> bool:
    try:
        return b"PHALANX_MARK=" + folder in environ.read_bytes()
    except OSError:
        return False
