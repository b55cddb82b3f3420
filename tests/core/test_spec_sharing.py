"""How a job shares the fleet, as it is written: what is taken, and what is refused with the field and what to change."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.core.devices import DeviceRequest
from phalanx.core.errors import SpecError
from phalanx.core.spec import Array, JobSpec, Placing
from phalanx.core.spec_parse import load_spec, parse_spec


def spec(**fields: Any) -> JobSpec:
    return parse_spec({"name": "x", "entrypoint": "true", **fields})


def test_what_a_job_may_say_of_its_size_place_and_turn() -> None:
    found = spec(
        num_nodes=8,
        min_nodes=4,
        placing={
            "within": "block",
            "group": 2,
            "where": {"cluster": "north", "generation": 3},
            "spot": "prefer",
            "regions": ["eu"],
            "data": {"eu": "2TB", "us": 1024},
        },
        preemptible=False,
        deadline="12h",
        window="off-peak",
        after=["tiny-lm-7", "other-8"],
        array={"count": 10_000, "parallel": 5},
    )
    assert found.placing == Placing(
        within="block",
        group=2,
        where={"cluster": "north", "generation": "3"},
        spot="prefer",
        regions=("eu",),
        data={"eu": "2TB", "us": "1024"},
    )
    assert found.placing.data_bytes == {"eu": 2 * 10**12, "us": 1024}
    assert (found.min_nodes, found.after, found.array) == (4, ("tiny-lm-7", "other-8"), Array(count=10_000, parallel=5))
    assert found.deadline_ms(1_000) == 43_201_000


def test_a_share_and_its_memory() -> None:
    found = spec(resources={"gpus": 0.25, "gpu_memory": "4GiB"})
    assert found.resources.devices == DeviceRequest((), 1, 250, 4 * 2**30)
    assert spec(resources={"gpus": "L4:0.5"}).resources.devices == DeviceRequest(("L4",), 1, 500)


def test_a_deadline_is_read_as_yaml_writes_it(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: x\nentrypoint: 'true'\ndeadline: 2030-01-01T09:00:00Z\nafter: [a-1]\nresources: {gpus: 0.5}\n")
    found = load_spec(job)
    assert found.deadline_ms(0) == 1_893_488_400_000
    assert (found.after, found.resources.gpus) == (("a-1",), "0.5")


@pytest.mark.parametrize(
    ("fields", "names", "says"),
    [
        ({"num_nodes": 2, "min_nodes": 3}, "min_nodes", r"num_nodes \(2\)"),
        ({"min_nodes": -1}, "min_nodes", "from 1"),
        ({"num_nodes": 4, "min_nodes": 3, "placing": {"group": 2}}, "min_nodes", "multiple of placing.group"),
        ({"num_nodes": 3, "placing": {"group": 2}}, "placing.group", "divides num_nodes"),
        ({"placing": {"group": -1}}, "placing.group", "divides"),
        ({"placing": {"within": "rail"}}, "placing.within", "domain"),
        ({"placing": {"where": {"a b": "x"}}}, "placing.where.a b", "label"),
        ({"placing": {"where": {"a": ""}}}, "placing.where.a", "letters"),
        ({"placing": {"regions": "eu"}}, "placing.regions", "a list"),
        ({"placing": {"regions": ["EU"]}}, "placing.regions", "name a region"),
        ({"placing": {"data": {"eu west": "1TB"}}}, "placing.data", "name a region"),
        ({"placing": {"data": {"eu": "much"}}}, "placing.data.eu", "a size"),
        ({"placing": {"wher": {}}}, "placing.wher", "did you mean 'where'"),
        ({"placing": {"spot": "maybe"}}, "placing.spot", "never"),
        ({"deadline": "tomorrow"}, "deadline", "UTC time"),
        ({"deadline": "2030-01-01T09:00"}, "deadline", "UTC time"),
        ({"window": "Off Peak"}, "window", "lower-case"),
        ({"after": ["tiny"]}, "after", "tiny-lm-7"),
        ({"after": ["../x-1"]}, "after", "tiny-lm-7"),
        ({"after": ["a-1", "a-1"]}, "after", "once"),
        ({"after": [f"a-{number}" for number in range(101)]}, "after", "at most 100"),
        ({"after": "a-1"}, "after", "list"),
        ({"array": {"count": 0}}, "array.count", "1 to 10000"),
        ({"array": {"count": 10_001}}, "array.count", "1 to 10000"),
        ({"array": {"count": 3, "parallel": 4}}, "array.parallel", r"count \(3\)"),
        ({"array": {"count": 3, "paralell": 4}}, "array.paralell", "did you mean 'parallel'"),
        ({"array": {}}, "array.count", "required"),
        ({"resources": {"gpus": "1", "gpu_memory": "4GiB"}}, "resources.gpu_memory", "share"),
        ({"resources": {"gpus": "0.5", "gpu_memory": "much"}}, "resources.gpu_memory", "16GiB"),
        ({"resources": {"gpus": "0.5"}, "num_nodes": 2}, "num_nodes", "share"),
        ({"resources": {"gpus": 1.5}}, "resources.gpus", "0.25"),
        ({"preemptible": "perhaps"}, "preemptible", "true or false"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(fields: dict[str, Any], names: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as refused:
        spec(**fields)
    assert refused.value.field == names


def test_a_recipe_keeps_its_number_of_ranks() -> None:
    recipe = {"name": "x", "kind": "train", "recipe": "llama", "data": {"path": "/d"}, "num_nodes": 2}
    assert parse_spec({**recipe, "min_nodes": 2}).min_nodes == 2
    with pytest.raises(SpecError, match="keeps its number of nodes"):
        parse_spec({**recipe, "min_nodes": 1})
