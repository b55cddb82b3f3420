"""Options of speed on a gang of one: which of them change no bit, how far the others are off, and what is refused."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.core.errors import SetupError, SpecError
from phalanx.core.lora import Lora
from phalanx.core.recipe import FREE, LlamaRecipe, config_text
from phalanx.job.models.llama import Block, Llama, LlamaShape
from phalanx.job.models.lora import adapt
from phalanx.job.train import compiled
from phalanx.job.train.activations import all_but, kept, plain
from phalanx.job.train.arithmetic import settle_arithmetic
from phalanx.job.train.device import Rank, alone, prepare_device, this_rank
from phalanx.job.train.float8 import to_float8
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import make_mesh, sharded_llama
from phalanx.job.train.pipeline.stage import Stage
from phalanx.job.train.precision import Dtype, policy
from phalanx.job.train.recipe import llama_recipe
from phalanx.job.train.speed import quicken
from phalanx.job.train.step import train_step

RECIPE = LlamaRecipe(
    dim=32, layers=3, heads=4, kv_heads=2, ffn_dim=48, sequence=48, batch_per_rank=2, accumulate=2, steps=6, warmup_steps=1,
)  # fmt: skip
VOCAB = 97
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
STEPS = 3
Numbers = list[tuple[float, float]]


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    device = prepare_device()
    alone(device)
    yield this_rank(device)
    dist.destroy_process_group()


def trained(rank: Rank, dtype: Dtype = "fp32", **options: Any) -> Numbers:
    """(loss, gradient norm) of each step."""
    recipe = replace(RECIPE, **options)
    samples = torch.randint(VOCAB, (2, 2, recipe.sequence + 1), generator=torch.Generator().manual_seed(1))
    model = sharded_llama(recipe.shape(VOCAB), recipe, rank, make_mesh(rank), dtype)
    optimizer = make_adamw(model, recipe)
    facts = [train_step(model, optimizer, lambda _: samples, recipe, step, lambda: 0.0) for step in range(1, STEPS + 1)]
    return [(fact.loss, fact.grad_norm) for fact in facts]


@pytest.fixture(scope="module")
def as_ever(rank: Rank) -> Numbers:
    return trained(rank)


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How many matrix products and attentions are computed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.matrices, self.attentions = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.matrices += func is torch.ops.aten.mm.default
        self.attentions += func is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        return func(*args, **(kwargs or {}))


# Of a block's five products the last is never computed again: nothing needs it. 3 blocks, 2 microbatches, 3 steps.
AGAIN = {
    "full": ({"activation_checkpointing": "full"}, 4 * 18, 18),
    "every second": ({"activation_checkpointing": "full", "activation_blocks": 2}, 4 * 12, 12),
    "attention kept": ({"activation_checkpointing": "selective", "activation_budget": 0.2}, 4 * 18, 0),
    "more kept": ({"activation_checkpointing": "selective", "activation_budget": 0.6}, 2 * 18, 0),
    "all kept": ({"activation_checkpointing": "selective", "activation_budget": 1.0}, 0, 0),
}


@pytest.mark.parametrize(("options", "matrices", "attentions"), AGAIN.values(), ids=AGAIN)
def test_what_is_computed_again_gets_the_same_bits(
    rank: Rank, as_ever: Numbers, options: dict[str, Any], matrices: int, attentions: int
) -> None:
    with Products() as plainly:
        trained(rank)
    with Products() as found:
        assert trained(rank, **options) == as_ever
    assert found.matrices - plainly.matrices == matrices
    assert found.attentions - plainly.attentions == attentions


def test_a_stage_of_a_pipeline_computes_again_what_the_whole_model_would() -> None:
    recipe = replace(RECIPE, activation_checkpointing="full", activation_blocks=2)
    stage = Stage(recipe.shape(VOCAB), range(1, 3))
    quicken(stage, recipe, "fp32", CPU)
    assert [number for number, block in stage.blocks.named_children() if "forward" in vars(block)] == ["2"]


def test_weights_that_stay_gathered_or_are_asked_for_early_are_the_same(rank: Rank, as_ever: Numbers) -> None:
    assert trained(rank, reshard_after_forward=False) == as_ever
    assert trained(rank, prefetch_blocks=2) == as_ever


def test_the_loss_of_some_tokens_at_a_time_differs_in_the_last_bits(rank: Rank, as_ever: Numbers) -> None:
    off = worst(trained(rank, fused_loss=True), as_ever)
    assert 0 <= off < 1e-6


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of torch itself, which hides it where it may
def test_compiled_blocks_give_the_same_losses_and_are_compiled_once(
    rank: Rank, as_ever: Numbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a compiler that generates no code: 20 s of a first step are its. What is captured, split in two and found again for each
    block, microbatch and generation of the gang is the same."""
    graphs = []

    def counted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(graph)
        return aot_eager(graph, inputs)

    monkeypatch.setattr(compiled.run_by, "__defaults__", (counted,))
    assert worst(trained(rank, compile=True), as_ever) < 1e-5
    assert len(graphs) == 1
    assert worst(trained(rank, compile=True), as_ever) < 1e-5, "a survivor that wraps its model anew"
    assert len(graphs) == 1
    again = trained(rank, compile=True, activation_checkpointing="selective")
    assert worst(again, as_ever) < 1e-5
    assert len(graphs) == 2, "another function"


def test_names_and_passes_without_gradients_are_those_of_the_block(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = RECIPE.shape(VOCAB)
    model, ran = Llama(shape), []
    names = [name for name, _ in model.named_parameters()]

    def run(block: nn.Module, *given: Any) -> torch.Tensor:
        ran.append(block)
        return plain(block, *given)

    compiled.run_by(model.blocks, [run] * shape.layers, compile_them=False)
    with torch.no_grad():
        model(torch.zeros(1, 4, dtype=torch.int64))
    assert not ran
    model(torch.zeros(1, 4, dtype=torch.int64))
    assert ran == list(model.blocks)
    assert [name for name, _ in model.named_parameters()] == names


def test_auto_compiles_on_cuda_where_that_can_be_done(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(compiled, "find_spec", lambda _: object())
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name == "gcc" else None)
    assert [compiled.compiles(asked, CUDA) for asked in ("auto", True, False)] == [True, True, False]
    assert [compiled.compiles(asked, CPU) for asked in ("auto", True, False)] == [False, True, False]
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert not compiled.compiles("auto", CUDA)
    assert "blocks are not compiled: a C compiler is not installed here" in caplog.text
    monkeypatch.setattr(compiled, "find_spec", lambda _: None)
    with pytest.raises(SetupError, match="triton is not installed here: install it, or write false"):
        compiled.compiles(True, CUDA)


def test_cudnn_is_asked_first_and_every_way_to_attend_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch._C._get_sdp_priority_order()
    try:
        settle_arithmetic(True, CPU)
        order = torch._C._get_sdp_priority_order()
        asked = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
        assert order[:2] == [int(one) for one in asked]  # type: ignore[call-overload]  # an enum of C++
        assert sorted(order) == sorted(before)
    finally:
        torch._C._set_sdp_priority_order(before)


def test_the_dearest_products_for_their_bytes_are_kept() -> None:
    """Of 7.24B: attention 4,096 elements, qkv 6,144, out 4,096, gate and up 28,672: 43,008."""
    shape = LlamaShape(vocab=32_000, dim=4096, layers=32, heads=32, kv_heads=8, ffn_dim=14_336)
    out, qkv, gate = (4096, 4096), (4096, 6144), (4096, 14_336)
    assert kept(shape, 8192, 0.0) == (False, frozenset())
    assert kept(shape, 8192, 4096 / 43_008) == (True, frozenset())
    assert kept(shape, 8192, 0.35) == (True, frozenset({out, qkv}))
    assert kept(shape, 8192, 1.0) == (True, frozenset({out, qkv, gate}))
    assert kept(shape, 512, 0.1)[0] is False, "of short sequences attention costs less than a product"
    assert all_but(True, frozenset({out})) is all_but(True, frozenset({out})), "what was compiled is found by it"


# 8-bit products


@pytest.mark.parametrize("dtype", ["fp8", "fp8_rowwise"])
def test_8_bit_products_learn_as_bf16_does(rank: Rank, dtype: Dtype) -> None:
    bf16 = trained(rank, "bf16")
    found = trained(rank, dtype)
    assert found != bf16
    assert max(abs(ours[0] / theirs[0] - 1) for ours, theirs in zip(found, bf16, strict=True)) < 0.01


def test_8_bit_products_are_of_the_blocks_alone_under_the_same_names() -> None:
    block = Block(RECIPE.shape(VOCAB))
    names = [name for name, _ in block.named_parameters()]
    to_float8(block, "fp8", CPU)
    kinds = {type(part).__name__ for part in block.modules() if isinstance(part, nn.Linear)}
    assert kinds == {"Float8Linear"}
    assert [name for name, _ in block.named_parameters()] == names


def test_without_torchao_8_bit_products_are_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(SetupError, match=r"install phalanx\[fp8\], or write bf16"):
        to_float8(Block(RECIPE.shape(VOCAB)), "fp8", CPU)


def test_a_card_without_8_bit_products_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(SetupError, match=r"compute capability 8\.0, and 8-bit products need 8\.9"):
        to_float8(Block(RECIPE.shape(VOCAB)), "fp8", CUDA)


def test_a_matrix_that_has_no_8_bit_products_is_named() -> None:
    with pytest.raises(SetupError, match=r"attention\.qkv is 24 x 72"):
        to_float8(Block(LlamaShape(vocab=31, dim=24, layers=1, heads=2, ffn_dim=48)), "fp8", CPU)


def test_a_layer_with_adapters_is_refused_and_not_made_one_without() -> None:
    model = Llama(RECIPE.shape(VOCAB))
    adapt(model, Lora(rank=16, alpha=16.0, targets=("q_proj",)))
    with pytest.raises(SetupError, match="AdaptedLinear"):
        to_float8(model.blocks[0], "fp8", CPU)
    with pytest.raises(SpecError, match="low-rank adapters"):
        llama_recipe({"dtype": "fp8", "lora_rank": 16})


# The recipe

REFUSED = [
    ({"activation_blocks": 0}, "activation_blocks"),
    ({"activation_blocks": 5}, r"activation_blocks.*from 1 to the number of layers \(4\)"),
    ({"activation_budget": 1.5}, "activation_budget"),
    ({"activation_checkpointing": "some"}, "activation_checkpointing"),
    ({"prefetch_blocks": 9}, "prefetch_blocks"),
    ({"compile": "always"}, "compile"),
    ({"deterministic": False}, r"recompute_every.*write 0"),
    ({"activation_checkpointing": "selective", "experts": 4}, "activation_checkpointing.*write full or none"),
    ({"activation_blocks": 2}, "activation_blocks.*write activation_checkpointing"),
    ({"activation_checkpointing": "full", "activation_budget": 0.1}, "activation_budget.*selective too"),
    ({"dtype": "fp8", "ffn_dim": 344}, r"ffn_dim.*multiples of 16"),
    ({"dtype": "fp8", "dim": 64, "heads": 4, "head_dim": 10}, "head_dim.*heads x head_dim. is 40"),
    ({"dtype": "fp8", "heads": 4, "kv_heads": 1, "head_dim": 4}, "head_dim.*2 x kv_heads. x head_dim. is 24"),
    ({"dtype": "fp8", "experts": 4, "shared_experts": 1, "expert_ffn_dim": 24}, "shared_experts x expert_ffn_dim. is 24"),
    ({"reduce_dtype": "fp16"}, "reduce_dtype"),
]


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_impossible_options_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        llama_recipe(given)


def test_options_that_are_possible_are_taken() -> None:
    made = llama_recipe(
        {"compile": True, "fused_loss": False, "deterministic": False, "recompute_every": 0, "dtype": "fp8_rowwise"}
    )
    assert (made.compile, made.fused_loss) == (True, False)


def test_a_run_may_go_on_with_other_options_that_change_no_loss() -> None:
    changed = {
        "activation_checkpointing": "full", "activation_blocks": 2, "activation_budget": 0.1, "reshard_after_forward": False,
        "prefetch_blocks": 1, "offload": "nvme", "offload_dir": "/scratch",
    }  # fmt: skip
    assert set(changed) == set(FREE)
    assert config_text(replace(RECIPE, **changed)) == config_text(RECIPE)  # type: ignore[arg-type]
    assert config_text(replace(RECIPE, compile=True)) != config_text(RECIPE)


def test_gradients_are_summed_in_what_is_asked_for() -> None:
    assert policy("bf16").reduce_dtype == torch.float32
    assert policy("fp8", "bf16").reduce_dtype == torch.bfloat16
    assert policy("fp32", "bf16").reduce_dtype is None, "nothing is rounded in fp32"


def worst(found: Numbers, expected: Numbers) -> float:
    """Of the losses, relative."""
    return max(abs(ours[0] / theirs[0] - 1) for ours, theirs in zip(found, expected, strict=True))
