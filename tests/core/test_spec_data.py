"""What a job spec may say about its data, and what is said about what it may not."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.core import features, wire
from phalanx.core.errors import SpecError
from phalanx.core.spec import JobSpec
from phalanx.core.spec_data import SOURCES_MAX, TEXT_BYTES_MAX, refuse_unprepared
from phalanx.core.spec_parse import load_spec, parse_spec
from phalanx.core.training_data import Blocks, DataCache, DataSource, MixtureSource, WeightChange, data_of
from phalanx.show.cli.overrides import changed

WEB_AND_CODE = {"web": {"path": "w", "weight": 7}, "code": {"path": "c", "weight": 0.3}}
WHOLE: dict[str, Any] = {
    "sources": WEB_AND_CODE,
    "changes": [{"from_step": 300, "weights": {"code": 1}}],
    "packing": "best_fit",
    "shuffle": {"block_samples": 64, "window_blocks": 8},
}


def parsed(data: object) -> DataSource:
    found = parse_spec({"name": "x", "kind": "train", "recipe": "llama", "data": data}).data
    assert found is not None
    return found


def test_a_path_is_all_that_a_job_needs_to_say() -> None:
    data = parsed({"path": "d"})
    assert (data.is_plain, data.paths, data.by_document) == (True, {"data": "d"}, False)
    assert not parsed({"path": "d", "shuffle": "in_order"}).is_plain


def test_a_mixture_with_all_that_can_be_said() -> None:
    data = parsed(WHOLE)
    assert data == DataSource(
        sources={"web": MixtureSource(path="w", weight=7.0), "code": MixtureSource(path="c", weight=0.3)},
        changes=(WeightChange(from_step=300, weights={"code": 1.0}),),
        packing="best_fit",
        shuffle=Blocks(block_samples=64, window_blocks=8),
    )
    assert (data.is_plain, data.paths, data.by_document) == (False, {"web": "w", "code": "c"}, True)
    assert parsed({"path": "d", "attention": "document"}).by_document


def test_a_cache_of_a_job_changes_nothing_but_where_its_data_is_kept() -> None:
    data = parsed({"path": "s3://bkt/d", "cache": {"folder": "/nvme/cache", "limit": "200 GiB"}})
    assert data.cache == DataCache(folder="/nvme/cache", limit="200 GiB")
    assert (data.is_plain, data.is_read_plainly) == (False, True)
    assert data_of({"PHALANX_DATA_SPEC": wire.dumps(DataSource, data)}) == data


def test_it_reaches_a_rank_as_it_was_written() -> None:
    data = parsed(WHOLE)
    assert data_of({"PHALANX_DATA": "", "PHALANX_DATA_SPEC": wire.dumps(DataSource, data)}) == data
    assert data_of({"PHALANX_DATA": "/d", "PHALANX_DATA_SPEC": ""}) == DataSource(path="/d")
    assert data_of({"PHALANX_DATA": ""}) is None


def test_what_older_versions_wrote_is_read_and_needs_no_newer_node() -> None:
    spec = wire.loads(JobSpec, '{"name":"x","kind":"train","recipe":"llama","data":{"path":"/d"}}')
    assert spec.data == DataSource(path="/d")
    assert features.DATA_SPEC not in features.needed(spec)
    mixed = parse_spec({"name": "x", "kind": "train", "recipe": "llama", "data": WHOLE})
    assert features.DATA_SPEC in features.needed(mixed)
    far = parse_spec({"name": "x", "kind": "train", "recipe": "llama", "data": {"path": "s3://bucket/corpus"}})
    assert features.DATA_SPEC in features.needed(far), "an older one would look for a folder of that name"


def two(web: object, code: object, **more: object) -> dict[str, object]:
    return {"sources": {"web": {"path": "w", **web}, "code": {"path": "c", **code}}, **more}  # type: ignore[dict-item]


WRONG: list[tuple[object, str, object, str]] = [
    ({}, "data.path", "", "phalanx data prepare"),
    ({"path": ""}, "data.path", "", "or several in data.sources"),
    ({"path": "d", "sources": WEB_AND_CODE}, "data", "path and sources", "one of them"),
    ({"paht": "d"}, "data.paht", "d", "did you mean 'path'?"),
    ({"path": 3}, "data.path", 3, "write text"),
    ({"path": "d", "temperature": 2}, "data.temperature", 2.0, "for several data sets"),
    ({"path": "d", "changes": [{"from_step": 3, "weights": {"a": 1}}]}, "data.changes", None, "for several data sets"),
    ({"path": "d", "packing": "best-fit"}, "data.packing", "best-fit", "'best_fit'"),
    ({"path": "d", "packing": "best_fit", "attention": "row"}, "data.attention", "row", "leave it out"),
    ({"path": "d", "attention": "token"}, "data.attention", "token", "'row' or 'document'"),
    ({"path": "d", "shuffle": "ful"}, "data.shuffle", "ful", "write full, in_order, or {block_samples: N, window_blocks: M}"),
    ({"path": "d", "shuffle": {"block_samples": 3}}, "data.shuffle", {"block_samples": 3}, "window_blocks: M}"),
    ({"path": "d", "shuffle": {"block_sample": 3}}, "data.shuffle.block_sample", 3, "did you mean 'block_samples'?"),
    ({"path": "d", "shuffle": {"block_samples": 3, "window_blocks": 0}}, "data.shuffle.window_blocks", 0, "above 0"),
    ({"path": "d", "on_bad_data": "skip"}, "data.on_bad_data", "skip", "'stop' or 'quarantine'"),
    ({"path": "d", "bad_data_max": 1}, "data.bad_data_max", 1.0, "such as 0.01"),
    ({"path": "d", "cache": {"folder": "cache"}}, "data.cache.folder", "cache", "from its root on"),
    ({"path": "d", "cache": {"limit": "many"}}, "data.cache.limit", "many", "write a size such as"),
    ({"path": "d", "cache": {"limit": "3 PB"}}, "data.cache.limit", "3 PB", "units are"),
    ({"path": "d", "cache": {"limit": "8MB"}}, "data.cache.limit", "8MB", "is 8000000 bytes, and data comes in units of 8388608"),
    ({"path": "d", "cache": {"limit": "0"}}, "data.cache.limit", "0", "is 0 bytes"),
    ({"path": "d", "cache": {"limt": "9GB"}}, "data.cache.limt", "9GB", "did you mean 'limit'?"),
    ({"path": "d", "cache": "/c"}, "data.cache", "/c", "a mapping"),
    ({"path": "d", "record": "no"}, "data.record", "no", "true or false"),
    ({"sources": []}, "data.sources", [], "a mapping"),
    ({"sources": {"web": "w"}}, "data.sources.web", "w", "a mapping of its fields"),
    ({"sources": {"web": {}}}, "data.sources.web.path", "(missing)", "is required"),
    ({"sources": {"web": {"path": ""}}}, "data.sources.web.path", "", "phalanx data prepare"),
    ({"sources": {"web": {"path": "w", "wieght": 1}}}, "data.sources.web.wieght", 1, "did you mean 'weight'?"),
    ({"sources": {"a.b": {"path": "w"}}}, "data.sources.a.b", "a.b", "letters, digits, '-' and '_'"),
    ({"sources": {"-": {"path": "w"}}}, "data.sources.-", "-", "letters, digits, '-' and '_'"),
    (two({"weight": "1"}, {"weight": 1}), "data.sources.web.weight", "1", "without quotes"),
    (two({"weight": True}, {"weight": 1}), "data.sources.web.weight", True, "write a number"),
    (two({"weight": -1}, {"weight": 1}), "data.sources.web.weight", -1, "from 0 up"),
    (two({"weight": float("inf")}, {"weight": 1}), "data.sources.web.weight", float("inf"), "from 0 up"),
    (two({"weight": float("nan")}, {"weight": 1}), "data.sources.web.weight", None, "from 0 up"),
    (two({"weight": 1, "epochs": 1}, {"weight": 1}), "data.sources.web", "weight 1.0 and epochs 1.0", "give one of them"),
    (two({"weight": 1}, {}), "data.sources.code", "(no share)", "others have weight"),
    (two({"weight": 1}, {"epochs": 1}), "data.sources.code", "epochs", "others have weight"),
    (two({"weight": 0}, {"weight": 0}), "data.sources", 0, "no source has a share"),
    (two({"weight": 1}, {"weight": 1}, temperature=2), "data.temperature", 2.0, "by their sizes"),
    (two({}, {}, temperature=0), "data.temperature", 0.0, "above 0"),
    (two({}, {}, changes=[{"from_step": 0, "weights": {"web": 1}}]), "data.changes.0.from_step", 0, "after step 0"),
    (two({}, {}, changes=[{"from_step": 4, "weights": {"wbe": 1}}]), "data.changes.0.weights", "wbe", "there are code, web"),
    (two({}, {}, changes=[{"from_step": 4, "weights": {"web": -1}}]), "data.changes.0.weights.web", -1, "from 0 up"),
    (two({}, {}, changes=[{"from_step": 4, "weights": {}}]), "data.changes.0.weights", {}, "no source has a share"),
    (two({}, {}, changes=[{"from": 4, "weights": {}}]), "data.changes.0.from", 4, "did you mean 'from_step'?"),
    (two({}, {}, changes={"from_step": 4}), "data.changes", {"from_step": 4}, "a list"),
    (
        {"sources": {f"s{number}": {"path": "p"} for number in range(SOURCES_MAX + 1)}}, "data.sources", SOURCES_MAX + 1, "at most",
    ),
    ({"sources": {f"s{number}": {"path": "p" * 100} for number in range(1_000)}}, "data", None, f"in {TEXT_BYTES_MAX} bytes"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "field", "value", "fix"), WRONG, ids=[f"{number}-{one[1]}" for number, one in enumerate(WRONG)])
def test_a_bad_field_is_named_with_its_value_and_mend(data: object, field: str, value: object, fix: str) -> None:
    with pytest.raises(SpecError) as caught:
        parsed(data)
    assert caught.value.field == field
    assert value is None or caught.value.value == value
    assert fix in caught.value.fix


def test_paths_of_sources_begin_at_the_file_and_those_of_the_command_line_at_the_current_folder(tmp_path: Path) -> None:
    job, here = tmp_path / "jobs" / "job.yaml", tmp_path / "here"
    for folder in (tmp_path / "jobs" / "w", here / "c"):
        folder.mkdir(parents=True)
        (folder / "manifest.json").touch()
    (tmp_path / "jobs" / "c").mkdir()
    job.write_text("name: x\nkind: train\nrecipe: llama\ndata: {sources: {web: {path: w}, code: {path: c}}}\n")
    with pytest.raises(SpecError, match=r"data\.sources\.code\.path.*phalanx data prepare PATHS --out"):
        load_spec(job)
    spec = load_spec(job, lambda data: changed(data, ["data.sources.code.path=c"], here))
    assert spec.data is not None
    assert spec.data.paths == {"web": str(tmp_path / "jobs" / "w"), "code": str(here / "c")}
    assert spec.data.folders == (str(here / "c"), str(tmp_path / "jobs" / "w"))


def test_the_example_of_a_mixture_is_accepted() -> None:
    file = Path(__file__).parents[2] / "examples" / "mixture" / "job.yaml"
    spec = parse_spec(yaml.safe_load(file.read_text()))
    assert spec.data is not None
    assert set(spec.data.sources) == {"code", "text"} and len(spec.data.changes) == 1 and spec.data.by_document
    page = (file.parents[2] / "docs" / "job-spec.md").read_text()
    shown = next(block for block in re.findall(r"```yaml\n(data:.*?)```", page, re.DOTALL) if "sources" in block)
    assert set(parsed(yaml.safe_load(shown)["data"]).sources) == {"web", "code"}


def test_a_url_of_a_folder_is_that_folder(tmp_path: Path) -> None:
    place = tmp_path / "with space"
    data = DataSource(path=place.as_uri()).anchored(tmp_path / "jobs")
    assert (data.path, data.folders) == (str(place), (str(place),))
    refuse_unprepared(data)  # it may be on the nodes
    place.mkdir()
    with pytest.raises(SpecError, match="is empty: name a folder made by `phalanx data prepare`"):
        refuse_unprepared(data)


def test_a_place_in_a_store_is_left_as_it_is_and_looked_at_by_the_ranks(tmp_path: Path) -> None:
    far = "s3://bucket/corpus"
    data = DataSource(sources={"near": MixtureSource(path="near"), "far": MixtureSource(path=far)}).anchored(tmp_path)
    assert data.paths == {"near": str(tmp_path / "near"), "far": far}
    assert data.folders == (str(tmp_path / "near"),)
    refuse_unprepared(DataSource(path=far).anchored(tmp_path))
    (tmp_path / "near").write_text("text")
    with pytest.raises(SpecError, match=r"data\.sources\.near\.path.*is a file, not a folder"):
        refuse_unprepared(data)
