"""Numbers of the training benchmark that are worked out and not measured: FLOPs, memory and time of a case. Pure, and no torch."""

from typing import Any, Final

from parts.train_case import Case, Size  # type: ignore[import-not-found]  # beside this folder

from phalanx.core.llama_shape import active_parameters, num_parameters

GIB: Final = 2**30
FITS: Final = 0.97
"""Of a card's memory: an estimate above it is not worth a try, one just below may still fail."""
_STATE_BYTES: Final = 16
"""Of a parameter: float32 of itself, its gradient, and AdamW's two moments."""
_RUNTIME_GIB: Final = 3.0
"""CUDA's context, NCCL's buffers, the workspace of products."""
_LOGIT_BYTES: Final = 10
"""Of all logits, where they are held: bf16, float32, and the gradient as float32."""
_FUSED_LOSS_GIB: Final = 1.5
_SHARE_OF_PRODUCTS: Final = 0.45
"""Of a block's activations: what torchtitan's `op` keeps of them, every second product and attention."""
_COMPILE_S: Final = {"ours": 18.0, "peer": 18.0}
"""Of one kind of block, where nothing is found again: so that a case lasts about what it was seen to on two H200."""
_BUILT_S: Final = 3.0
"""A model is built, and its weights are drawn on the card."""
_MFU_GUESSED: Final = 0.42
_PEAK_GUESSED: Final = 989.4e12
START_S: Final = 30.0
"""Of a gang: torch is imported, CUDA and NCCL begin."""


def flops_per_token(size: Size, kind: str) -> int:
    """Of a training step, of the parameters that a token is computed with: 6 x (those - embedding) + 12 x layers x width x
    sequence. kind: full, as torchtitan counts; causal has half of the second term, since half of the scores are masked."""
    attention = (12 if kind == "full" else 6) * size.layers * size.dim * size.sequence
    return int(6 * (active_parameters(size.shape) - size.vocab * size.dim) + attention)


def mfu(tokens_per_s: float, size: Size, kind: str, peak_flops: float) -> float:
    """tokens_per_s: of one card. peak_flops: its dense bf16 peak; 0.0 where none is known."""
    return tokens_per_s * flops_per_token(size, kind) / peak_flops if peak_flops else 0.0


def tokens_per_s(case: Case, step_s: float) -> float:
    """Of one card: ranks that share a sample each count their part of it."""
    return float(case.batch * case.size.sequence / (case.ranks_per_sample * step_s))


def memory_gib(case: Case, ranks: int, side: str) -> float:
    """About how much a card needs at most: within a tenth or two of what was measured of 1.1B and 7.2B models."""
    options, size, sharing = case.options, case.size, case.laid_out(ranks)
    parameters, cut = num_parameters(size.shape), sharing.tp * sharing.pp
    whole = parameters // cut // (sharing.ep if size.experts else 1)
    blocks = max(1, size.layers // sharing.pp)
    needed = _STATE_BYTES * parameters / ranks
    needed += 2 * whole * (1 if _keeps(case) else 3 / blocks) + 8 * whole / blocks  # gathered, and gradients on their way
    needed += 4 * whole if sharing.pp > 1 else 0  # which add up over microbatches
    tokens = case.batch / case.microbatches * size.sequence / (sharing.cp * sharing.tp)
    under_way = min(case.microbatches, sharing.pp)
    needed += 2 * tokens * under_way * blocks * _numbers_kept(size, options, side)
    if side == "ours" and options.get("fused_loss") is not False:
        needed += _FUSED_LOSS_GIB * GIB
    else:
        needed += _LOGIT_BYTES * tokens * size.vocab
    return float(needed / GIB + _RUNTIME_GIB)


def expected_s(case: Case, ranks: int, side: str, is_new: bool = True) -> float:
    """is_new: no case of the same gang had the same compiled code before."""
    compiled = _COMPILE_S[side] * (1.3 if _checkpointing(case.options) else 1.0) if is_new else 8.0
    tokens = case.batch * case.size.sequence / case.ranks_per_sample
    step_s = tokens * flops_per_token(case.size, "causal") / (_MFU_GUESSED * _PEAK_GUESSED)
    return float(_BUILT_S + compiled + case.total * step_s)


def graph_of(case: Case) -> tuple[Any, ...]:
    """Of which cases with the same compiled code are alike: all but how FSDP gathers and reduces."""
    beside = ("reshard_after_forward", "prefetch_blocks", "reduce_dtype", "parallelism.fsdp_reshard_after_forward")
    rest = {name: value for name, value in case.options.items() if name not in beside}
    return case.size, case.batch // case.microbatches, str(sorted(case.layout.items())), str(sorted(rest.items()))


def _keeps(case: Case) -> bool:
    """Whether gathered weights stay from forward to backward."""
    never = case.options.get("parallelism.fsdp_reshard_after_forward") == "never"
    return never or case.options.get("reshard_after_forward") is False or "pp" in case.layout or "tp" in case.layout


def _checkpointing(options: dict[str, Any]) -> str:
    return str(options.get("activation_checkpointing", options.get("activation_checkpoint.mode", "none"))).replace("none", "")


def _numbers_kept(size: Size, options: dict[str, Any], side: str) -> float:
    """For the backward pass, of a token and a block; the mean over blocks."""
    shape = size.shape
    product_widths = shape.q_dim + 2 * shape.kv_dim + size.dim
    feeds = max(1, size.per_token)
    of_experts = (2 if side == "ours" else 3) * size.dim * feeds if size.experts else 0  # rows that came, answers to add up
    every: float = 3 * size.dim + product_widths + 3 * size.ffn_dim * feeds + of_experts
    match _checkpointing(options):
        case "":
            return every
        case "full":
            again, blocks = float(size.dim), int(options.get("activation_blocks", 1))
        case _ if side == "ours":
            budget = float(options.get("activation_budget", 0.5))
            again = size.dim + budget * (product_widths + 2 * size.ffn_dim * feeds)
            blocks = int(options.get("activation_blocks", 1))
        case _:
            option = str(options.get("activation_checkpoint.selective_ac_option", "2"))
            again = _SHARE_OF_PRODUCTS * every if option == "op" else float(size.dim)
            blocks = 1 if option == "op" else int(option)
    mean: float = every + (again - every) / blocks
    return mean
