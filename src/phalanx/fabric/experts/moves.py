"""The copies that bring one placement to another, in rounds, without an expert ever being nowhere.

A slot is not overwritten while its content is needed: in a round every GPU takes in at most `buffers` experts beside its slots,
each read from where it lay when the round began, and at the round's end they take the places of what goes. Replicas that go
somewhere else are edges between GPUs. As many come to each GPU as go, so the edges part into closed ways that visit no GPU twice.
Each way is done in one round, and after it no expert has fewer replicas than before, but for those whose replicas become fewer.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from phalanx.fabric.experts.layout import ExpertLayout, Ints

_NOWHERE = -1
"""Where an additional replica comes from, and one too many goes."""


@dataclass(frozen=True, slots=True)
class Move:
    """In this round of this layer the GPU `target` reads the expert from the GPU `source`; at the round's end the expert takes the
    place of another, `replaces`, in that slot of the target. GPUs count over all nodes."""

    layer: int
    round: int
    expert: int
    source: int
    target: int
    slot: int
    replaces: int


def moves_between(layout: ExpertLayout, present_LGS: Ints, wanted_LGS: Ints, buffers: int) -> tuple[Move, ...]:
    """What brings `present` to `wanted`, up to the order of the slots of a GPU; sorted by layer and round."""
    found = list[Move]()
    for layer in (present_LGS != wanted_LGS).any((1, 2)).nonzero()[0].tolist():
        found += _of_layer(layout, layer, present_LGS[layer], wanted_LGS[layer], buffers)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Edge:
    expert: int
    begin: int
    end: int


def _of_layer(layout: ExpertLayout, layer: int, present: Ints, wanted: Ints, buffers: int) -> Iterator[Move]:
    slots = present.tolist()
    held = defaultdict[int, set[int]](set)
    for gpu, on in enumerate(slots):
        for expert in on:
            held[expert].add(gpu)
    rounds = _rounds(_closed_ways(_edges(layout, slots, wanted.tolist())), buffers)
    for number, ways in enumerate(rounds):
        sent = Counter[int]()
        moves = [move for way in ways for move in _of_way(layout, layer, number, way, slots, held, sent)]
        for move in moves:
            slots[move.target][move.slot] = move.expert
            held[move.replaces].discard(move.target)
        for move in moves:
            held[move.expert].add(move.target)
        yield from moves


def _edges(layout: ExpertLayout, present: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]]) -> list[_Edge]:
    """Each replica that goes, to where one of its expert comes, on the same node where there is one; or from or to nowhere."""
    going, coming = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for gpu, (was, to_be) in enumerate(zip(present, wanted, strict=True)):
        for expert in sorted(set(was) - set(to_be)):
            going[expert].append(gpu)
        for expert in sorted(set(to_be) - set(was)):
            coming[expert].append(gpu)
    edges = list[_Edge]()
    for expert in sorted(going.keys() | coming.keys()):
        left = list(going[expert])
        for gpu in coming[expert]:
            near = [other for other in left if other // layout.gpus_per_node == gpu // layout.gpus_per_node]
            begin = (near or left or [_NOWHERE])[0]
            if left:
                left.remove(begin)
            edges.append(_Edge(expert, begin, gpu))
        edges += [_Edge(expert, gpu, _NOWHERE) for gpu in left]
    return edges


def _closed_ways(edges: Sequence[_Edge]) -> Iterator[list[_Edge]]:
    """Follows edges, and cuts a way off whenever it comes to a GPU where it has been."""
    out = defaultdict[int, list[_Edge]](list)
    for edge in reversed(edges):
        out[edge.begin].append(edge)
    for start in sorted(out):
        walked, at = list[_Edge](), start
        while out[at]:
            edge = out[at].pop()
            walked.append(edge)
            at = edge.end
            been = next((index for index, one in enumerate(walked) if one.begin == at), None)
            if been is not None:
                yield walked[been:]
                del walked[been:]


def _rounds(ways: Iterator[list[_Edge]], buffers: int) -> list[list[list[_Edge]]]:
    """Each way in the first round in which its GPUs still have room."""
    rounds, used = list[list[list[_Edge]]](), list[Counter[int]]()
    for way in ways:
        gpus = [edge.end for edge in way if edge.end != _NOWHERE]
        number = next((number for number, of in enumerate(used) if all(of[gpu] < buffers for gpu in gpus)), len(rounds))
        if number == len(rounds):
            rounds.append([])
            used.append(Counter())
        rounds[number].append(way)
        used[number].update(gpus)
    return rounds


def _of_way(
    layout: ExpertLayout,
    layer: int,
    number: int,
    way: Sequence[_Edge],
    slots: list[list[int]],
    held: Mapping[int, set[int]],
    sent: Counter[int],
) -> Iterator[Move]:
    """What comes to a GPU takes the place of what goes on from there."""
    for edge, onward in zip(way, [*way[1:], way[0]], strict=True):
        if edge.end == _NOWHERE:
            continue
        node = edge.end // layout.gpus_per_node
        source = min(held[edge.expert], key=lambda gpu: (gpu // layout.gpus_per_node != node, sent[gpu], gpu))
        sent[source] += 1
        slot = slots[edge.end].index(onward.expert)
        yield Move(layer, number, edge.expert, source, edge.end, slot, onward.expert)
