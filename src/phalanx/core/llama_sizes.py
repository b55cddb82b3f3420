"""Known sizes of Llama-like models, as functions. What a job's `size` names; explicit hyperparameters go over it. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, Final

from phalanx.core.llama_shape import LlamaShape, Rope

INIT_STD: Final = 0.02
"""`initializer_range` of all of these."""
_LLAMA_3: Final = 128_256
_QWEN: Final = 151_936


def llama_1b(vocab: int = 32_000) -> LlamaShape:
    """1.10 billion parameters: the benchmarks' small model."""
    return LlamaShape(vocab=vocab, dim=2048, layers=16, heads=32, kv_heads=8, ffn_dim=8192, rope_base=500_000.0)


def llama_7b(vocab: int = 32_000) -> LlamaShape:
    """7.24 billion: Llama 3's 8B with a small vocabulary."""
    return llama_3_8b(vocab)


def llama_3_8b(vocab: int = _LLAMA_3) -> LlamaShape:
    """8.03 billion."""
    return _llama_3(Rope(base=500_000.0), vocab=vocab, dim=4096, layers=32, heads=32, ffn_dim=14_336)


def llama_31_8b(vocab: int = _LLAMA_3) -> LlamaShape:
    """8.03 billion, of a stretched context."""
    return _llama_3(_stretched(8.0), vocab=vocab, dim=4096, layers=32, heads=32, ffn_dim=14_336)


def llama_31_70b(vocab: int = _LLAMA_3) -> LlamaShape:
    """70.6 billion."""
    return _llama_3(_stretched(8.0), vocab=vocab, dim=8192, layers=80, heads=64, ffn_dim=28_672)


def llama_32_1b(vocab: int = _LLAMA_3) -> LlamaShape:
    """1.24 billion, tied."""
    return _llama_3(_stretched(32.0), vocab=vocab, dim=2048, layers=16, heads=32, ffn_dim=8192, tied=True)


def llama_32_3b(vocab: int = _LLAMA_3) -> LlamaShape:
    """3.21 billion, tied."""
    return _llama_3(_stretched(32.0), vocab=vocab, dim=3072, layers=28, heads=24, ffn_dim=8192, tied=True)


def qwen_25_05b(vocab: int = _QWEN) -> LlamaShape:
    """0.49 billion, tied."""
    return _qwen_2(vocab=vocab, dim=896, layers=24, heads=14, kv_heads=2, ffn_dim=4864, tied=True)


def qwen_25_15b(vocab: int = _QWEN) -> LlamaShape:
    """1.54 billion, tied."""
    return _qwen_2(vocab=vocab, dim=1536, layers=28, heads=12, kv_heads=2, ffn_dim=8960, tied=True)


def qwen_25_7b(vocab: int = 152_064) -> LlamaShape:
    """7.62 billion."""
    return _qwen_2(vocab=vocab, dim=3584, layers=28, heads=28, kv_heads=4, ffn_dim=18_944)


def qwen_3_06b(vocab: int = _QWEN) -> LlamaShape:
    """0.60 billion, tied."""
    return _qwen_3(vocab=vocab, dim=1024, layers=28, heads=16, ffn_dim=3072, tied=True)


def qwen_3_17b(vocab: int = _QWEN) -> LlamaShape:
    """1.72 billion, tied."""
    return _qwen_3(vocab=vocab, dim=2048, layers=28, heads=16, ffn_dim=6144, tied=True)


def qwen_3_4b(vocab: int = _QWEN) -> LlamaShape:
    """4.02 billion, tied."""
    return _qwen_3(vocab=vocab, dim=2560, layers=36, heads=32, ffn_dim=9728, tied=True)


def qwen_3_8b(vocab: int = _QWEN) -> LlamaShape:
    """8.19 billion."""
    return _qwen_3(vocab=vocab, dim=4096, layers=36, heads=32, ffn_dim=12_288)


SIZES: Final[Mapping[str, Callable[..., LlamaShape]]] = {
    "llama-1b": llama_1b,
    "llama-7b": llama_7b,
    "llama-3-8b": llama_3_8b,
    "llama-3.1-8b": llama_31_8b,
    "llama-3.1-70b": llama_31_70b,
    "llama-3.2-1b": llama_32_1b,
    "llama-3.2-3b": llama_32_3b,
    "qwen2.5-0.5b": qwen_25_05b,
    "qwen2.5-1.5b": qwen_25_15b,
    "qwen2.5-7b": qwen_25_7b,
    "qwen3-0.6b": qwen_3_06b,
    "qwen3-1.7b": qwen_3_17b,
    "qwen3-4b": qwen_3_4b,
    "qwen3-8b": qwen_3_8b,
}
"""Name, as a job writes it, to its shape for a number of tokens; without one its makers' own."""


def over_size(given: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters with those of the `size` that they name below them. The vocabulary stays the data's. An unknown size is left
    for `LlamaRecipe.problems` to name."""
    size = SIZES.get(str(given.get("size", "")))
    if size is None:
        return dict(given)
    shape = asdict(size())
    del shape["vocab"]
    return {**shape, "init_std": INIT_STD, **given}


def _stretched(factor: float) -> Rope:
    return Rope(base=500_000.0, factor=factor)


def _llama_3(rope: Rope, **sizes: Any) -> LlamaShape:
    return LlamaShape(kv_heads=8, rope_base=rope.base, rope_factor=rope.factor, **sizes)


def _qwen_2(**sizes: Any) -> LlamaShape:
    return LlamaShape(rope_base=1_000_000.0, norm_epsilon=1e-6, qkv_bias=True, **sizes)


def _qwen_3(**sizes: Any) -> LlamaShape:
    return LlamaShape(kv_heads=8, head_dim=128, rope_base=1_000_000.0, norm_epsilon=1e-6, qk_norm=True, **sizes)
