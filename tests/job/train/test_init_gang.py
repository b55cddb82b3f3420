"""Two ranks begin with a folder's weights: full fine-tuning and adapters, against one process, resumed, merged and written out."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from phalanx.core.errors import CheckpointError
from phalanx.core.llama_shape import LlamaShape
from phalanx.core.lora import Lora, num_lora_parameters, targets_of
from phalanx.core.spec_parse import parse_spec, recipe_config
from phalanx.job.checkpoint import manifest
from phalanx.job.checkpoint.whole import open_checkpoint
from phalanx.job.data.prepare import prepare
from phalanx.job.models.hf_export import write_hf
from phalanx.job.models.llama import Llama, initialise
from phalanx.job.models.model_folder import ModelFolder
from phalanx.job.serve.export import main as export
from phalanx.job.serve.sample import load_model
from tests.job.checkpoint.gang_launch import end_gang, logs, start_gang
from tests.job.data.prepare_cases import write_texts
from tests.job.train.init_cases import EXAMPLE, LORA, STEPS, STOP

SHAPE = LlamaShape(
    vocab=307, dim=16, layers=2, heads=4, kv_heads=2, head_dim=6, ffn_dim=24, qk_norm=True, tied=True, rope_base=5000.0
)  # 307: above the tokenizer's 300, and odd
OF_LORA = Lora(rank=16, alpha=32.0, targets=targets_of(LORA["lora_targets"]))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("init")
    texts = write_texts(out / "texts", files=12, lines=30)
    prepare([texts], out / "data", vocab_size=300, held_out=0.2)
    model = Llama(SHAPE)
    for name, part in model.named_children():
        initialise(part, name, 7, 0.1)
    beside = {"tokenizer.json": (out / "data" / "tokenizer.json").read_bytes(), "chat_template.jinja": b"{{ messages }}"}
    write_hf(out / "base", model, "float32", beside, 64, 0)
    shutil.copytree(out / "base", out / "kept")
    arguments = ("-m", "tests.job.train.init_cases", str(out), str(out / "data"), str(out / "base"))
    codes = end_gang(start_gang(arguments, out / "logs", 2, {}), limit_s=600)
    assert codes == [0, 0], logs(out / "logs")
    shutil.rmtree(out / "base")
    (out / "kept").rename(out / "base")
    return out


@pytest.fixture(scope="module")
def answer(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "answer.json").read_text())
    return found


@pytest.mark.parametrize("kind", ["full", "whole"])
def test_shards_begin_as_the_folder_s_weights_and_train_as_one_process(answer: dict[str, Any], kind: str) -> None:
    run = answer[kind]
    assert run["given"] == [] and run["corruption"] == []
    losses = [float.fromhex(loss) for loss in run["losses"].values()]
    assert losses == pytest.approx(answer["plain"][kind], rel=1e-5) and len(losses) == STEPS
    assert losses[-1] < losses[0] and all(math.isfinite(loss) for loss in losses)


def test_full_fine_tuning_changes_every_weight_and_lora_none_that_was_given(answer: dict[str, Any]) -> None:
    assert len(answer["full"]["changed"]) == len(list(Llama(SHAPE).parameters())) and answer["full"]["adapters"] == 0
    assert answer["whole"]["adapters"] == len(answer["whole"]["changed"]) == 2 * 2 * 4
    assert answer["full"]["losses"]["1"] == answer["whole"]["losses"]["1"]  # at first adapters add nothing


def test_adapters_train_alike_whatever_ranks_share(answer: dict[str, Any]) -> None:
    zero, whole = ([float.fromhex(loss) for loss in run.values()] for run in (answer["zero"], answer["whole"]["losses"]))
    assert zero == pytest.approx(whole, rel=1e-6)


def test_a_lora_run_that_was_ended_and_resumed_is_the_undisturbed_one(answer: dict[str, Any]) -> None:
    first, second = answer["legs"]
    assert list(first["losses"]) == ["1", "2", "3", "4"] and list(second["losses"]) == ["4", "5", "6"] and STOP == 5
    for one in (first, second):
        assert one["losses"] == {step: answer["whole"]["losses"][step] for step in one["losses"]}
    assert second["model"]["weights_digest"] == answer["whole"]["model"]["weights_digest"]
    assert answer["whole"]["model"]["lineage"]["init_weights"] == second["model"]["lineage"]["init_weights"]


def test_adapters_go_on_with_the_weights_that_they_were_trained_on_alone(answer: dict[str, Any], out: Path) -> None:
    digest = ModelFolder(out / "base").digest()
    assert answer["full"]["model"]["lineage"]["init_weights"] == digest
    assert f"the adapters were trained on {digest[:12]}" in answer["other"]


def test_nodes_with_other_weights_under_one_path_are_told_though_they_share_a_host_name(answer: dict[str, Any]) -> None:
    two, one = answer["nodes"]
    assert "nodes have other weights there" in two and one == ""  # of one node a single rank reads


def test_checkpoints_and_the_saved_model_hold_adapters_alone(answer: dict[str, Any], out: Path) -> None:
    saved = load_file(Path(answer["whole"]["model"]["path"]) / "model.safetensors")
    assert sum(tensor.numel() for tensor in saved.values()) == num_lora_parameters(SHAPE, OF_LORA)
    checkpoint = open_checkpoint(manifest.committed(out / "whole" / "checkpoints")[0][1])
    names = [name for name in checkpoint.tensors if name.startswith("model.")]
    assert sorted(names) == sorted(f"model.{name}" for name in saved)
    assert all(".adapters." in name or name.startswith("rng") for name in checkpoint.tensors)


def test_adapters_are_merged_for_who_reads_the_model(answer: dict[str, Any], out: Path, tmp_path: Path) -> None:
    folder = Path(answer["whole"]["model"]["path"])
    merged, _, sequence = load_model(folder)
    given = Llama(SHAPE)
    opened = ModelFolder(out / "base")
    for name, part in given.named_children():
        opened.fill(part, name)
    changed = [name for name, weight in merged.named_parameters() if not torch.equal(weight, given.get_parameter(name))]
    assert changed == [f"blocks.{n}.{layer}.weight" for n in (0, 1) for layer in ("attention.qkv", "attention.out", "feed.down")]
    down, up = (
        load_file(folder / "model.safetensors")[f"blocks.1.feed.down.adapters.down_proj.{one}.weight"] for one in ("down", "up")
    )
    expected = given.get_parameter("blocks.1.feed.down.weight") + up @ down * 32 / 16
    torch.testing.assert_close(merged.get_parameter("blocks.1.feed.down.weight"), expected)
    assert export([str(folder), "--to", str(tmp_path / "hf")]) == 0
    assert ModelFolder(tmp_path / "hf").shape == SHAPE and sequence == 16
    assert (tmp_path / "hf" / "chat_template.jinja").read_bytes() == b"{{ messages }}"  # handed on, as is the longest context
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["max_position_embeddings"] == 64


def test_adapters_are_written_as_peft_names_them(answer: dict[str, Any], out: Path, tmp_path: Path) -> None:
    folder = answer["whole"]["model"]["path"]
    assert export([folder, "--to", str(tmp_path / "peft"), "--format", "peft"]) == 0
    said = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert (said["r"], said["lora_alpha"], said["target_modules"]) == (16, 32, ["q_proj", "v_proj", "o_proj", "down_proj"])
    assert said["base_model_name_or_path"] == str(out / "base")
    written = load_file(tmp_path / "peft" / "adapter_model.safetensors")
    assert tuple(written["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"].shape) == (SHAPE.kv_dim, 16)
    assert len(written) == 16


def test_what_holds_adapters_alone_begins_no_run_and_a_whole_model_has_none(
    answer: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CheckpointError, match="holds adapters alone"):
        ModelFolder(Path(answer["whole"]["model"]["path"]))
    assert export([answer["full"]["model"]["path"], "--to", str(tmp_path / "peft"), "--format", "peft"]) == 2
    assert "has no adapters" in capsys.readouterr().err


def test_the_example_is_a_job() -> None:
    recipe = recipe_config(parse_spec(EXAMPLE))
    assert recipe.lora == OF_LORA and recipe.init == "model"


def test_a_model_that_a_run_saved_begins_another_one(answer: dict[str, Any]) -> None:
    assert ModelFolder(Path(answer["full"]["model"]["path"])).shape == SHAPE
