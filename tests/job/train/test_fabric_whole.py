"""What a test of the fabric makes of what its ranks told, without any rank."""

from phalanx.core.fabric_test import FabricAsked
from phalanx.fabric.links.naming import judged
from phalanx.fabric.links.tiers import tiers
from phalanx.job.train.fabric_test.facts import Facts
from phalanx.job.train.fabric_test.whole import Found, member, notes, tier_view

A100 = "NVIDIA A100-SXM4-80GB"


def told(nodes: int, gpus: int, device: str = A100, nics: float | None = 400e9) -> list[Facts]:
    return [
        Facts(node=node, local_rank=gpu, name=f"n{node}", host=f"h{node}", device=device, nics=nics, nvlinks=12)
        for node in range(nodes) for gpu in range(gpus)
    ]  # fmt: skip


def found_of(facts: list[Facts], asked: FabricAsked = FabricAsked()) -> Found:  # noqa: B008 (frozen)
    members = [member(rank, one, asked) for rank, one in enumerate(facts)]
    return Found(facts, members, tiers(members))


def test_a_rank_lies_where_the_policys_labels_say() -> None:
    one = Facts(node=0, local_rank=3, name="n7", host="h", device="cpu", nics=None, nvlinks=None)
    labels = {"domain": "d", "rack": "r", "block": "b"}
    found = member(5, one, FabricAsked(places=(("n*", labels),)))
    assert (found.rank, found.name, {name: getattr(found, name) for name in labels}) == (5, "n7", labels)


def test_a_tiers_hardware_is_said_by_whatever_limits_it() -> None:
    found = found_of(told(2, 2))
    views = {tier.name: tier_view(tier, found) for tier in found.tiers}
    links, adapters = "12 NVLinks of 25 GB/s", "its network adapters"
    assert {name: (one.hardware_bytes_per_s, one.source) for name, one in views.items()} == {
        "node": (300e9, links), "rail": (200e9, adapters), "all": (300e9, links),
    }  # fmt: skip
    unknown = found_of(told(2, 2, "Some GPU", None))
    assert {(one.hardware_bytes_per_s, one.source) for one in (tier_view(tier, unknown) for tier in unknown.tiers)} == {(None, "")}


def test_places_that_could_not_be_handed_over_are_told() -> None:
    found = found_of(told(2, 2))
    assert notes(found) == ()
    found.unplaced = True
    assert [one for one in notes(found) if "where nodes lie is not known" in one]


def test_pairs_that_nobody_could_judge_are_told() -> None:
    found = found_of([*told(1, 3), *told(2, 1)[1:]])
    found.rates = {(0, 1): 1e9, (0, 2): 1e9, (1, 2): 1e9, (0, 3): 1e8}
    assert any(one.startswith("3 of 4 pairs of ranks had others of their kind") for one in notes(found))
    assert judged(found.rates, found.members) == 3
