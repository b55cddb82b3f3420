"""The example of the expert load balancer says what it found."""

import runpy
from pathlib import Path

import pytest


def test_experts_are_placed_and_moved(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "examples/experts/place.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "layer 0: the fullest GPU has 1.138 times the mean load" in said and said.count("  node ") == 16
    assert "node 0, GPU 0:  50% of expert 5, 100% of expert 6" in said
    assert "later: 1.885 as it was, 1.329 after 19 moves" in said
