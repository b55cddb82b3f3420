"""What the training benchmark claims, and the cases of each side that are tried for it, the likeliest first.

The first case of a side that runs is measured in any case, the others where time is left, and the best counts. What is here of the
peer are its own options; of ours fields of a recipe. No torch.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from parts.train_case import DENSE_1B, DENSE_7B, LONG_1B, LONG_WIDE, MOE, Case, Size  # type: ignore[import-not-found]  # beside this folder

Options = dict[str, Any]

FAST: Final[Options] = {"deterministic": False, "recompute_every": 0}
"""Of ours. torchtitan's defaults make no two runs alike either; and cuDNN's attention is not to be had otherwise."""
KEPT: Final[Options] = {"reshard_after_forward": False}
FULL: Final[Options] = {"activation_checkpointing": "full"}
FOURTH: Final[Options] = {"activation_checkpointing": "selective", "activation_budget": 0.35, "activation_blocks": 4}
SECOND: Final[Options] = {**FOURTH, "activation_blocks": 2}

NEVER: Final[Options] = {"parallelism.fsdp_reshard_after_forward": "never"}
PEER_FULL: Final[Options] = {"activation_checkpoint.mode": "full"}
PEER_OPS: Final[Options] = {"activation_checkpoint.mode": "selective", "activation_checkpoint.selective_ac_option": "op"}
PEER_SECOND: Final[Options] = {**PEER_OPS, "activation_checkpoint.selective_ac_option": "2"}
PEER_FOURTH: Final[Options] = {**PEER_OPS, "activation_checkpoint.selective_ac_option": "4"}
PEER_FP8: Final[Options] = {
    "model.converters": ["quantize.linear.float8"], "quantize.linear.float8.filter_fqns": ["output"],
    "quantize.linear.float8.enable_fsdp_float8_all_gather": True,
    "quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp": True,
}  # fmt: skip
PEER_ROWWISE: Final[Options] = {
    "model.converters": ["quantize.linear.float8"], "quantize.linear.float8.filter_fqns": ["output"],
    "quantize.linear.float8.recipe_name": "rowwise",
}  # fmt: skip
ASYNC: Final[Options] = {"parallelism.enable_async_tensor_parallel": True}
UNCOMPILED: Final[Options] = {"compile.enable": False}
LOSS_STEPS: Final = 200
LOSS_SEQUENCE: Final = 4096
"""Of the 200 steps: half of a sample, so that they fit into a call."""
CALM: Final[Options] = {"lr": 3e-5, "warmup_steps": 50}
"""What 4,096 tokens a step bear. At 3e-4, the rate for millions of them, the loss rises above that of guessing and two runs part by
more than their arithmetic: nothing of 8 bits would be seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """ours, peer: cases. over: the claim whose own cases of ours are measured too, and compared with. ratio_min: to the peer.
    mfu_min: of kind `mfu`. over_min: to the other claim's."""

    ours: tuple[Case, ...]
    peer: tuple[Case, ...] = ()
    over: str = ""
    ratio_min: float | None = None
    over_min: float | None = None
    mfu_min: float | None = None
    mfu: str = "causal"
    note: str = ""

    @property
    def target(self) -> str:
        said = {"ratio": self.ratio_min, f"ratio to ours of {self.over}": self.over_min, f"MFU ({self.mfu})": self.mfu_min}
        return ", ".join(f"{name} >= {least}" for name, least in said.items() if least is not None) or self.note


def _ours(size: Size, *tried: tuple[int, Options], **more: Any) -> tuple[Case, ...]:
    return tuple(Case(size=size, batch=batch, options={**FAST, **options}, **more) for batch, options in tried)


def _peer(size: Size, *tried: tuple[int, Options], **more: Any) -> tuple[Case, ...]:
    return tuple(Case(size=size, batch=batch, options=options, **more) for batch, options in tried)


_SHORT: Final = {"warm": 3, "steps": 2}
"""Of steps that take more than a second each."""
_TP: Final = {"layout": {"tp": 2}}
_EP: Final = {"layout": {"ep": 2}}
_CP: Final = {"layout": {"cp": 2}}
_EVEN: Final = {**_EP, "even": True}
_MICROBATCHES: Final = 32
_1F1B: Final = {"layout": {"pp": 2, "schedule": "1f1b"}, "microbatches": _MICROBATCHES, "warm": 2, "steps": 1}
_INTERLEAVED: Final = {**_1F1B, "layout": {"pp": 2, "schedule": "interleaved"}}
"""Other schedules part the backward pass, which is not for compiled blocks."""
_TRIED_7B: Final[tuple[tuple[int, Options], ...]] = (
    (2, FOURTH),
    (1, KEPT),
    (1, {}),
    (2, {**FOURTH, "activation_checkpointing": "full", "activation_budget": 0.5}),
)

CLAIMS: Final[dict[str, Claim]] = {
    "dense_1b": Claim(
        ours=_ours(DENSE_1B, (12, KEPT), (8, KEPT), (4, KEPT), (8, {}), (8, {**KEPT, "prefetch_blocks": 1}), **_SHORT),
        peer=_peer(
            DENSE_1B, (8, NEVER), (12, NEVER), (4, NEVER), (2, NEVER), (2, {}), (4, PEER_OPS), (8, PEER_OPS), (8, {}),
            (12, PEER_OPS), (8, {**PEER_SECOND, **NEVER}), **_SHORT,
        ),
        ratio_min=1.10, mfu_min=0.62, mfu="full",
    ),
    "dense_7b": Claim(
        ours=_ours(DENSE_7B, *_TRIED_7B, **_SHORT),
        peer=_peer(
            DENSE_7B, (1, NEVER), (1, {}), (1, PEER_FULL), (2, PEER_SECOND), (2, PEER_FOURTH), (1, PEER_OPS), (2, PEER_OPS),
            **_SHORT,
        ),
        ratio_min=1.05, mfu_min=0.58, mfu="full",
    ),
    "fp8_7b": Claim(
        ours=_ours(
            DENSE_7B, (2, {**FOURTH, "dtype": "fp8"}), (1, {"dtype": "fp8"}), (1, {**KEPT, "dtype": "fp8"}),
            (2, {**FOURTH, "dtype": "fp8_rowwise"}), **_SHORT,
        ),
        peer=_peer(
            DENSE_7B, *((batch, {**PEER_FP8, **more}) for batch, more in (
                (1, NEVER), (1, {}), (1, PEER_FULL), (2, PEER_SECOND), (2, PEER_FOURTH), (2, PEER_OPS))),
            (1, PEER_ROWWISE), **_SHORT,
        ),
        over="dense_7b", over_min=1.30, ratio_min=1.0, mfu="full",
    ),
    "long_64k": Claim(
        ours=(
            *_ours(LONG_1B, (1, KEPT), **_CP, **_SHORT),
            *_ours(LONG_1B, (1, KEPT), layout={"cp": 2, "context": "ulysses"}, **_SHORT),
            *_ours(LONG_1B, (1, {**KEPT, **FULL}), **_CP, **_SHORT),
        ),
        peer=_peer(
            LONG_1B, (1, {}), (1, UNCOMPILED), (1, PEER_FULL), (1, {**PEER_FULL, **UNCOMPILED}),
            (1, {"parallelism.context_parallel_rotate_method": "alltoall"}), (1, NEVER), (1, {**PEER_FULL, **NEVER}), **_CP,
            **_SHORT,
        ),
        mfu_min=0.45,
    ),
    "long_64k_wide": Claim(
        ours=(
            *_ours(LONG_WIDE, (1, KEPT), **_CP, **_SHORT),
            *_ours(LONG_WIDE, (1, KEPT), layout={"cp": 2, "context": "ulysses"}, **_SHORT),
        ),
        peer=_peer(LONG_WIDE, (1, NEVER), (1, {}), **_CP, **_SHORT),
        note="long_64k with heads of 128: how much of it is the kernel of attention's",
    ),
    "moe_ep2": Claim(
        ours=_ours(MOE, (5, KEPT), (6, KEPT), (4, KEPT), (3, KEPT), **_EVEN),
        peer=_peer(MOE, (4, NEVER), (5, NEVER), (3, NEVER), (4, {}), (2, UNCOMPILED), **_EVEN),
        mfu_min=0.40,
    ),
    "moe_ep2_routed": Claim(
        ours=_ours(MOE, (4, KEPT), (5, KEPT), (3, KEPT), **_EP),
        peer=_peer(MOE, (4, NEVER), (3, NEVER), (4, {}), **_EP),
        note="moe_ep2 as its untrained router chooses, which gives experts very different numbers of tokens",
    ),
    "tp2": Claim(
        ours=_ours(DENSE_1B, (8, KEPT), (8, {**KEPT, "reduce_dtype": "bf16"}), **_TP, **_SHORT),
        peer=_peer(DENSE_1B, (8, NEVER), (8, {**ASYNC, **NEVER}), (8, PEER_OPS), (8, {}), **_TP, **_SHORT),
        ratio_min=1.0,
    ),
    "pp2": Claim(
        ours=(
            *_ours(DENSE_1B, (_MICROBATCHES, {"reduce_dtype": "bf16"}), (_MICROBATCHES, {}), **_1F1B),
            *_ours(DENSE_1B, (_MICROBATCHES, {}), **_INTERLEAVED),
        ),
        peer=(*_peer(DENSE_1B, (_MICROBATCHES, {}), **_1F1B), *_peer(DENSE_1B, (_MICROBATCHES, {}), **_INTERLEAVED)),
        ratio_min=1.0,
    ),
    "fp8_7b_loss": Claim(
        ours=tuple(
            Case(size=replace(DENSE_7B, sequence=LOSS_SEQUENCE), batch=1, options={**FAST, **CALM, "dtype": dtype}, warm=10,
                 steps=10, losses=LOSS_STEPS)
            for dtype in ("bf16", "fp8")
        ),
        note="loss off by <= 1 %",
    ),
}  # fmt: skip
