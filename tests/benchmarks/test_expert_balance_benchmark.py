"""The benchmark of the expert load balancer: its last line says what was claimed, and no set is above the peer."""

import json
from importlib import import_module
from pathlib import Path

import pytest


def test_two_layers_of_every_set(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    benchmark = import_module("expert_balance")
    monkeypatch.setattr(benchmark, "QUICK_LAYERS", 2)
    monkeypatch.setattr(benchmark, "QUICK_REPEATS", 1)
    monkeypatch.setattr("sys.argv", ["expert_balance.py", "--quick"])
    code = benchmark.main()
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["benchmark"], last["conditions"]["layers"]) == ("expert_balance", 2)
    claims = {one["id"]: one for one in last["claims"]}
    assert list(claims) == ["worst_ratio_to_eplb", "mean_ratio_to_eplb", "between_nodes", "ms_58x256", "live", "beside_owners"]
    assert len(claims["worst_ratio_to_eplb"]["of_each"]) == 10 and claims["worst_ratio_to_eplb"]["even"] <= 1.0
    assert claims["mean_ratio_to_eplb"]["bound"] < claims["mean_ratio_to_eplb"]["ours"] < 0.98
    assert all(claims[name]["holds"] for name in ("worst_ratio_to_eplb", "between_nodes", "live", "beside_owners"))
    assert code == int(not all(one["holds"] for one in last["claims"]))  # two layers are few for a mean
