"""What of a mixture of experts is refused at submit, and what is written instead."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.core.errors import SpecError
from phalanx.core.llama_shape import active_parameters, num_parameters
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec_parse import parse_spec, recipe_config

EXAMPLE = Path(__file__).parents[2] / "examples/experts/job.yaml"
SOME: dict[str, Any] = {"experts": 8}


@pytest.mark.parametrize(
    ("given", "field", "fix"),
    [
        ({"experts": 1}, "experts", "0 for a dense model, or 2 or more"),
        ({"experts": -4}, "experts", "0 for a dense model, or 2 or more"),
        ({**SOME, "experts_per_token": 9}, "experts_per_token", r"from 1 to experts \(8\)"),
        ({**SOME, "experts_per_token": 0}, "experts_per_token", r"from 1 to experts \(8\)"),
        ({**SOME, "experts_per_token": 1}, "router_normalise", "false"),
        ({**SOME, "dense_layers": 4}, "dense_layers", "from 0 to 3"),
        ({**SOME, "dense_layers": -1}, "dense_layers", "from 0 to 3"),
        ({**SOME, "shared_experts": -1}, "shared_experts", "0 or more"),
        ({**SOME, "expert_ffn_dim": -1}, "expert_ffn_dim", "0 or more"),
        ({**SOME, "router_scale": 0}, "router_scale", "above 0"),
        ({**SOME, "balance_rate": -0.1}, "balance_rate", "0 or more"),
        ({**SOME, "balance_loss": -1}, "balance_loss", "0 or more"),
        ({**SOME, "place_experts_every": -1}, "place_experts_every", "0 or more"),
        ({**SOME, "expert_replicas": -1}, "expert_replicas", "0 or more"),
        ({**SOME, "expert_replicas": 1}, "expert_replicas", "write place_experts_every too"),
        ({"expert_replicas": 1}, "expert_replicas", "write experts too"),
        ({**SOME, "router": "top"}, "router", "sigmoid"),
        ({"shared_experts": 1}, "shared_experts", "write experts too"),
        ({"balance_rate": 0.0}, "balance_rate", "write experts too"),
    ],
)
def test_what_cannot_work_is_refused_with_what_can(given: dict[str, Any], field: str, fix: str) -> None:
    spec = {"name": "x", "kind": "train", "recipe": "llama", "data": {"path": "d"}, "hyperparameters": given}
    with pytest.raises(SpecError, match=fix) as caught:
        parse_spec(spec)
    assert f"hyperparameters.{field}" in caught.value.sentence()


def test_the_example_is_as_large_as_it_says() -> None:
    spec = yaml.safe_load(EXAMPLE.read_text())
    shape = recipe_config(parse_spec(spec)).shape(4096)
    total, active = re.findall(r"([\d.]+)M", EXAMPLE.read_text().splitlines()[0])
    assert [f"{count / 1e6:.1f}" for count in (num_parameters(shape), active_parameters(shape))] == [total, active]


def test_what_can_work_is_taken() -> None:
    assert LlamaRecipe(experts=2, experts_per_token=1, router_normalise=False, dense_layers=3).problems() == []
    assert LlamaRecipe(experts=8, experts_per_token=8, balance_rate=0.0, balance_loss=1e-4).problems() == []
