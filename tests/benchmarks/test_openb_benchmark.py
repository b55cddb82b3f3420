"""The benchmark of shared GPUs: a tiny cluster is checked by hand, and its last line says what was claimed."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "openb.py"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn-1,64000,262144,4,T4\nn-0,64000,262144,8,G2\n"
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), "--trace-dir", str(folder), "--seeds", "1", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def written(folder: Path, pods: str) -> Path:
    (folder / "openb").mkdir()
    (folder / "openb" / "nodes_gpu.csv").write_text(NODES)
    (folder / "openb" / "pods_tiny.csv").write_text(PODS + pods)
    return folder


def test_all_gpus_are_given_and_what_comes_later_is_rejected(tmp_path: Path) -> None:
    """24 pods of half a GPU ask for 100 %; of the 31.2 that 130 % take, 32 come and 8 are turned away, whoever places them."""
    done = ran(written(tmp_path, "".join(f"p-{number},1000,1024,1,500\n" for number in range(24))), "--mix", "tiny")
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["benchmark"], last["conditions"]["seeds"]) == ("openb", [0])
    claims = {one["id"]: one for one in last["claims"]}
    assert list(claims) == [
        "reproduces", "alloc_100", "alloc_130", "rejected_8_gpu", "rejected_810_milli", "rejected_all", "seed_s",
    ]  # fmt: skip
    assert {one["mix"] for one in last["claims"]} == {"tiny"}
    assert [claims[name]["ours"] for name in ("alloc_100", "alloc_130", "rejected_all")] == [100.0, 100.0, 8.0]
    assert [claims[name]["peer"] for name in ("alloc_100", "alloc_130", "rejected_all")] == [100.0, 100.0, 8.0]
    assert 0 < claims["seed_s"]["ours"] < 60
    assert all(one["holds"] for one in last["claims"])


def test_a_gang_finds_its_node_whole(tmp_path: Path) -> None:
    """One gang of 8 in 5 pods: what fills the small node first is the small pods."""
    pods = "".join(f"p-{number},1000,1024,1,1000\n" for number in range(4)) + "gang,8000,8192,8,1000\n"
    done = ran(written(tmp_path, pods), "--mix", "tiny", "--only", "rejected_8_gpu")
    (claim,) = json.loads(done.stdout.splitlines()[-1])["claims"]
    assert claim["holds"] == (done.returncode == 0) == (claim["ours"] <= claim["peer"])


def test_the_live_scheduler_puts_pods_where_the_packer_does(tmp_path: Path) -> None:
    """Shares, whole GPUs, a gang, and pods without GPUs."""
    pods = "".join(
        f"a-{number},3000,4096,1,810\nb-{number},1000,1024,1,190\nc-{number},2000,1024,0,0\nd-{number},2000,1024,1,1000\n"
        for number in range(6)
    )
    folder = written(tmp_path, pods + "gang,8000,8192,4,1000\n")
    done = ran(folder, "--mix", "tiny", "--through", "schedule", "--every", "1")
    assert done.returncode == 0, done.stderr
    (claim,) = json.loads(done.stdout.splitlines()[-1])["claims"]
    assert claim["id"] == "through_schedule"
    assert (claim["ours"], claim["same"]) == (claim["peer"], 1.0)
    assert claim["pods"] == 25
    assert 90 < claim["ours"] <= 100


def test_a_bad_row_and_a_missing_folder_are_sentences(tmp_path: Path) -> None:
    done = ran(written(tmp_path, "p-0,1000,1024,1,500\np-1,1000,1024,1,5000\n"), "--mix", "tiny")
    assert done.returncode == 2
    assert done.stderr == "pods_tiny.csv:3 is '5000': gpu_milli: write 0 without a GPU, 1 to 1000 for one, 1000 for several\n"
    assert "Traceback" not in done.stdout
    (tmp_path / "openb" / "pods_tiny.csv").write_text(PODS + "p-0,1000,1024,0,0\n")
    nothing = ran(tmp_path, "--mix", "tiny")
    assert nothing.returncode == 2
    assert "20001 pods ask for 0 GPU-milli of the 15600 that make a stream" in nothing.stderr
    missing = ran(tmp_path / "nowhere", "--mix", "tiny")
    assert missing.returncode == 4
    assert "no such file" in missing.stderr
