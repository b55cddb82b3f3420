"""config.json of Hugging Face's models to our shape and back. Strict: what we would compute otherwise is refused. No torch.

Names of keys are those of transformers' configurations, also of before version 5, which had `rope_theta` and `rope_scaling`.
"""

from collections.abc import Mapping
from typing import Any, Final

from phalanx.core.llama_shape import ROPE_BASE, LlamaShape
from phalanx.job.models.config_values import LAYERS_MAX, ConfigValues, value_error

MODEL_TYPES: Final = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""Architecture, as `architectures` names it, to its `model_type`."""
_QWEN3_HEAD_DIM: Final = 128
"""Qwen3's own where the file leaves it out."""
_ONLY: Final[Mapping[str, object]] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "partial_rotary_factor": 1,
    "quantization_config": None,
}
"""What would make another model of it, and the only value with which it is the one here."""


def shape_of(config: Mapping[str, Any], place: str) -> LlamaShape:
    """Of a model whose config.json lies at `place`. Raises CheckpointError naming key, value and what is known here."""
    read = ConfigValues(config, place)
    architecture = read.architecture(MODEL_TYPES)
    _refuse_others(config, architecture, place)
    heads, dim = read.whole("num_attention_heads"), read.whole("hidden_size")
    head_dim = read.whole("head_dim", _QWEN3_HEAD_DIM if architecture == "Qwen3ForCausalLM" else dim // heads)
    if dim % heads and config.get("head_dim") is None:
        raise value_error(place, "hidden_size", dim, f"is no multiple of num_attention_heads ({heads}), and head_dim is not said")
    shape = LlamaShape(
        vocab=read.whole("vocab_size"),
        dim=dim,
        layers=read.whole("num_hidden_layers", most=LAYERS_MAX),
        heads=heads,
        ffn_dim=read.whole("intermediate_size"),
        kv_heads=read.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        norm_epsilon=read.number("rms_norm_eps"),
        qkv_bias=architecture == "Qwen2ForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        tied=read.flag("tie_word_embeddings"),
        **_rope(config, place),
    )
    for name, value, fix in shape.problems():
        raise value_error(place, name, value, f"is what no model can have; {fix}")
    return shape


def config_of(shape: LlamaShape, context: int, dtype: str, end_id: int | None) -> dict[str, Any]:
    """What config.json says of a model of ours. context: tokens of the longest row it was trained on. end_id: of the token that
    ends a document."""
    architecture = "Qwen3ForCausalLM" if shape.qk_norm else "Qwen2ForCausalLM" if shape.qkv_bias else "LlamaForCausalLM"
    stretched = {
        "rope_type": "llama3", "factor": shape.rope_factor, "low_freq_factor": shape.rope_low,
        "high_freq_factor": shape.rope_high, "original_max_position_embeddings": shape.rope_trained,
    }  # fmt: skip
    longest = max(context, int(shape.rope_trained * shape.rope_factor)) if shape.rope_factor != 1 else context
    return {
        "architectures": [architecture], "model_type": MODEL_TYPES[architecture],
        "vocab_size": shape.vocab, "hidden_size": shape.dim, "intermediate_size": shape.ffn_dim,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim, "hidden_act": "silu", "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_base, "rope_scaling": None if shape.rope_factor == 1 else stretched,
        "max_position_embeddings": longest, "tie_word_embeddings": shape.tied, "torch_dtype": dtype,
        **({} if end_id is None else {"eos_token_id": end_id}),
        "bos_token_id": None, "pad_token_id": None, "use_cache": True,
    }  # fmt: skip


def _refuse_others(config: Mapping[str, Any], architecture: str, place: str) -> None:
    only = {**_ONLY, **({"sliding_window": None} if architecture == "MistralForCausalLM" else {})}
    ConfigValues(config, place).refuse_others(only)
    kinds = config.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise value_error(place, "layer_types", kinds, "is not computed here, only 'full_attention'; take another model")


def _rope(config: Mapping[str, Any], place: str) -> dict[str, Any]:
    said = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(said, Mapping):
        raise value_error(place, "rope_parameters", said, "is no mapping")
    kind = said.get("rope_type", said.get("type", "default"))
    base = ConfigValues({"rope_theta": config.get("rope_theta"), **said}, place).number("rope_theta", ROPE_BASE)
    if kind == "default" or kind is None:
        return {"rope_base": base}
    if kind != "llama3":
        raise value_error(place, "rope_type", kind, "is not computed here; known are default, llama3")
    read = ConfigValues(said, place)
    return {
        "rope_base": base,
        "rope_factor": read.number("factor"),
        "rope_low": read.number("low_freq_factor"),
        "rope_high": read.number("high_freq_factor"),
        "rope_trained": read.whole("original_max_position_embeddings"),
    }
