"""How experts are cut over the ranks that `ep` leaves of those that share the state: along a side of their matrices."""

from collections.abc import Sequence


def side_to_cut(sides: Sequence[int], ranks: int) -> int | None:
    """The first that is cut evenly: not along the experts, which `ep` has cut, so that a rank's piece is one box and a checkpoint
    can cut it anew. None where there is none."""
    return next((number for number, side in enumerate(sides) if side % ranks == 0), None)


def experts_can_be_cut(dim: int, ffn_dim: int, ranks: int) -> bool:
    """Experts of that inner width: gate and up are one matrix, (dim, 2 ffn_dim), and down is another."""
    return all(side_to_cut(sides, ranks) is not None for sides in ((dim, 2 * ffn_dim), (ffn_dim, dim)))
