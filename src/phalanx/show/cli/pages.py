"""What people see of the platform, and of any nested mapping."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.devices import CPU_SLOT, Device
from phalanx.core.isolation import MEANS
from phalanx.core.units import show_size
from phalanx.core.views import NodeView, StatusView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, moment_cell, pairs, section
from phalanx.show.cli.text import clean

LIST_CHARS_MAX: Final = 80


def status_page(view: StatusView) -> Iterator[RenderableType]:
    """The platform at a glance."""
    yield pairs(_summary(view))
    if not view.nodes:
        yield line("No node has connected yet.")
        return
    head = ("NODE", "STATE", "DEVICES", "HELD", "CPUS", "MEMORY", "ADDRESS", "SEEN (UTC)")
    rows = [_node_row(node) for node in view.nodes]
    nodes = Grid(head, rows, right=("HELD", "CPUS", "MEMORY"), drop=("ADDRESS", "MEMORY", "CPUS"), cut="DEVICES")
    yield from section("Nodes", nodes)


def nodes_page(nodes: Sequence[NodeView]) -> Iterator[RenderableType]:
    """Every node, with why it is drained where it is."""
    if not nodes:
        yield line("No node has connected yet; `phalanx up` starts this machine's, `phalanx agent join` another's.")
        return
    head = ("NODE", "STATE", "DEVICES", "HELD", "FEATURES", "ADDRESS", "SEEN (UTC)", "DRAINED")
    rows = [
        (
            node.node, node_state(node), devices_text(node.devices), _held(node),
            ", ".join(node.features) or "-", node.address, moment_cell(node.seen_ms), node.drained or node.exposed or "-",
        )
        for node in nodes
    ]  # fmt: skip
    yield Grid(head, rows, right=("HELD",), drop=("FEATURES", "ADDRESS", "SEEN (UTC)"), cut="DRAINED")


def node_page(node: NodeView) -> Iterator[RenderableType]:
    """One node, with what it allows for keeping jobs apart."""
    yield pairs(_node_facts(node))


def _node_facts(node: NodeView) -> Iterator[tuple[str, object]]:
    yield "Node", f"{node.node} at {node.address}"
    yield "State", node_state(node)
    if node.drained:
        yield "Drained", node.drained
    if node.exposed:
        yield "Closed", node.exposed
    yield "Devices", f"{_held(node)} held; {devices_text(node.devices)}"
    yield "Attempts", ", ".join(sorted(set(node.held.values()))) or "none"
    yield "CPUs", f"{node.cpus:g}"
    yield "Memory", show_size(node.memory_bytes)
    yield "Features", ", ".join(node.features) or "-"
    yield "Isolation", node.isolation.mode if node.isolation else "not told by its agent, which is older"
    for name, words in MEANS.items() if node.isolation else ():
        why = (node.isolation.lacks or {}).get(name, "not tried") if node.isolation else ""
        yield words[0].upper() + words[1:], "yes" if node.isolation and name in node.isolation.can else f"no: {why}"
    yield "Seen (UTC)", moment_cell(node.seen_ms)


def node_state(node: NodeView) -> Text:
    """'up', 'closed' to teams that do not trust each other, 'drained', 'away' or 'away, drained': a closed or drained node that is
    up takes nothing new, one that is away answers nothing."""
    if node.exposed and not node.drained and node.state == "up":
        return Text("closed", style="yellow")
    if not node.drained:
        return Text("up", style="green") if node.state == "up" else Text(clean(node.state), style="red")
    return Text("drained", style="yellow") if node.state == "up" else Text(f"{clean(node.state)}, drained", style="red")


def drained_text(node: NodeView) -> str:
    """One sentence on a node that was drained or undrained."""
    away = "" if node.state == "up" else f" It is {node.state} now."
    if not node.drained:
        return f"{node.node} may be given work again.{away}"
    held = len(set(node.held.values()))
    gangs = f"; {held} attempt{'s' if held != 1 else ''} still there" if held else "; nothing runs there"
    return f"{node.node} is drained ({node.drained}): nothing new is placed on it{gangs}.{away}"


def mapping_page(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield pairs(mapping_rows(data))


def mapping_rows(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Dotted names and values of a nested mapping; what is empty is left out."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from mapping_rows(value, f"{prefix}{key}.")
        elif value is None or value == "" or value == [] or value == ():
            continue
        else:
            yield f"{prefix}{key}", _several_lines(value)


def _several_lines(value: object) -> Text:
    """A value whose own line breaks may stay: a long list, or one of mappings, has one line an item."""
    if isinstance(value, list | tuple):
        nested = any(isinstance(one, Mapping) for one in value)
        texts = [", ".join(f"{key} {item}" for key, item in one.items()) if isinstance(one, Mapping) else str(one) for one in value]
        return Text("\n" if nested or sum(map(len, texts)) > LIST_CHARS_MAX else ", ").join(line(text) for text in texts)
    return Text("\n").join(line(text) for text in str(value).split("\n"))


def _summary(view: StatusView) -> Iterator[tuple[str, object]]:
    yield "Phalanx", f"{view.version} at {view.url}"
    yield "Home", view.home
    if view.database:
        yield "Database", view.database
    yield "Devices", f"{view.devices_held} of {view.devices_total} held; {view.devices_are}"
    yield "Jobs", ", ".join(f"{count} {state}" for state, count in view.jobs.items() if count) or "none"
    yield "Epoch", view.epoch
    if view.trust:  # an older server says nothing of it
        yield "Trust", view.trust
    yield "Tracking", f"{view.outbox} entries to write" if view.outbox else "up to date"
    yield "Processes", ", ".join(f"{name} {pid}" for name, pid in view.processes.items()) or "-"


def _node_row(node: NodeView) -> tuple[object, ...]:
    return (
        node.node, node_state(node), devices_text(node.devices), _held(node), f"{node.cpus:g}", show_size(node.memory_bytes),
        node.address, moment_cell(node.seen_ms),
    )  # fmt: skip


def _held(node: NodeView) -> str:
    return f"{len(node.held)}/{len(node.devices)}"


def devices_text(devices: Iterable[Device]) -> str:
    """'8 x H100, 2 x CPU slot', or 'none'."""
    counts = Counter(device.type for device in devices)
    return ", ".join(f"{count} x {device_word(kind)}" for kind, count in counts.items()) or "none"


def device_word(kind: str) -> str:
    """A device type in words: a CPU slot is never passed off as a GPU."""
    return "CPU slot" if kind == CPU_SLOT else kind
