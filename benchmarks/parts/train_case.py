"""What one gang of the training benchmark is asked: a model, how ranks share it, and how each side trains it. No torch."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from phalanx.core.llama_shape import LlamaShape
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import LayoutSpec
from phalanx.fabric.layouts import Layout, laid_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A decoder. ffn_times, ffn_round: how torchtitan is told the same inner width of the feed-forward. experts: feed-forwards of a
    block, each of that width, of which a token takes `per_token`; 0 for a dense model."""

    name: str
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int
    ffn_times: float | None
    ffn_round: int
    vocab: int
    sequence: int
    experts: int = 0
    per_token: int = 0

    @property
    def shape(self) -> LlamaShape:
        given: dict[str, Any] = {"experts": self.experts, "experts_per_token": self.per_token, "router": "softmax"}
        return LlamaShape(
            vocab=self.vocab, dim=self.dim, layers=self.layers, heads=self.heads, kv_heads=self.kv_heads, ffn_dim=self.ffn_dim,
            **(given if self.experts else {}),
        )  # fmt: skip


DENSE_1B = Size(
    name="1.10B", dim=2048, layers=16, heads=32, kv_heads=8, ffn_dim=8192, ffn_times=1.5, ffn_round=1024, vocab=32_000,
    sequence=8192,
)  # fmt: skip
DENSE_7B = Size(
    name="7.24B", dim=4096, layers=32, heads=32, kv_heads=8, ffn_dim=14_336, ffn_times=1.3, ffn_round=1024, vocab=32_000,
    sequence=8192,
)  # fmt: skip
MOE = replace(DENSE_1B, name="6.74B of which 1.10B compute a token", ffn_dim=4096, ffn_times=None, experts=16, per_token=2)
LONG_1B = replace(DENSE_1B, sequence=65_536)
LONG_WIDE = replace(LONG_1B, name="1.10B with heads of 128", heads=16, kv_heads=4)
"""As many parameters and FLOPs, in the shape of heads for which attention has its fastest kernels."""


def tiny(size: Size) -> Size:
    """The same part played on a CPU."""
    return replace(
        size, name=f"tiny in the part of {size.name}", dim=64, layers=4, heads=4, kv_heads=2, ffn_dim=176, ffn_times=None,
        ffn_round=16, vocab=256, sequence=64, experts=min(size.experts, 4),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """batch: samples of a step, of each part of the data, in so many microbatches. layout: fields of a job's layout. options:
    fields of our recipe, or of torchtitan's configuration by dotted names. Timed are `repeats` times `steps` steps, after `warm`
    ones; losses: of so many steps at least are wanted. profiled: what the device did in two more steps is told. even: tokens go to
    experts in turn, whatever their router says, as after a training in which loads became even."""

    size: Size
    batch: int
    options: dict[str, Any] = field(default_factory=dict)
    layout: dict[str, Any] = field(default_factory=dict)
    microbatches: int = 1
    warm: int = 4
    steps: int = 4
    repeats: int = 5
    losses: int = 0
    profiled: bool = False
    even: bool = False

    @property
    def total(self) -> int:
        return max(self.warm + self.steps * self.repeats, self.losses)

    @property
    def ranks_per_sample(self) -> int:
        return LayoutSpec(**self.layout).ranks_per_sample

    def laid_out(self, ranks: int) -> Layout:
        """Over so many ranks."""
        return laid_out(LayoutSpec(**self.layout), ranks)

    def words(self) -> str:
        parts = [f"{self.microbatches} microbatches"] if self.microbatches > 1 else []
        parts += ["experts in turn"] if self.even else []
        named = (f"{name} {value}" for name, value in {**self.layout, **self.options}.items())
        return ", ".join([f"batch {self.batch}", *parts, *named])


def recipe_of(case: Case) -> LlamaRecipe:
    """Of our side."""
    size = case.size
    own = {
        "dim": size.dim, "layers": size.layers, "heads": size.heads, "kv_heads": size.kv_heads, "ffn_dim": size.ffn_dim,
        "sequence": size.sequence, "batch_per_rank": case.batch // case.microbatches,
        "accumulate": case.microbatches, "steps": 10_000, "lr": 3e-4, "warmup_steps": 20, "init_std": 0.02,
        "dtype": "bf16",
    }  # fmt: skip
    if size.experts:
        own |= {"experts": size.experts, "experts_per_token": size.per_token, "router": "softmax"}
    return LlamaRecipe(**{**own, **case.options})


Answer = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A case that a gang may measure. claim: for which; the first of a claim's cases that does not fail is its answer, and further
    ones are tried where time is left. expected_s: how long it takes, start of the gang apart."""

    claim: str
    case: Case
    expected_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Of a gang. soft_s, hard_s: by the machine's clock; what would take longer is not begun, a further case after the first one,
    a first one after the second. quiet_s: that a gang may say nothing before it counts as hung, at least. tried: entries that
    others have come to already, and whether they did not fail."""

    entries: tuple[Entry, ...]
    soft_s: float
    hard_s: float
    quiet_s: float = 120.0
    tried: dict[int, bool] = field(default_factory=dict)

    def next(self, now_s: float, slower: float = 1.0) -> int | None:
        """The entry that comes next; None when there is none, or no time for it. slower: how many times longer than expected those
        before it took."""
        answered = {self.entries[index].claim for index, good in self.tried.items() if good}
        waiting = [index for index in range(len(self.entries)) if index not in self.tried]
        firsts = [index for index in waiting if self.entries[index].claim not in answered]
        for indexes, until_s in ((firsts, self.hard_s), ([one for one in waiting if one not in firsts], self.soft_s)):
            for index in indexes:
                if now_s + slower * self.entries[index].expected_s <= until_s:
                    return index
        return None

    def after(self, index: int, good: bool) -> "Asked":
        return replace(self, tried={**self.tried, index: good})


def told(asked: Asked) -> dict[str, Any]:
    """As JSON has it."""
    return {**asdict(asked), "tried": [[index, good] for index, good in asked.tried.items()]}


def heard(said: dict[str, Any]) -> Asked:
    """The reverse."""
    entries = tuple(Entry(**{**one, "case": _case(one["case"])}) for one in said["entries"])
    return Asked(**{**said, "entries": entries, "tried": {int(index): bool(good) for index, good in said["tried"]}})


def _case(said: dict[str, Any]) -> Case:
    return Case(**{**said, "size": Size(**said["size"])})
