"""What people see of the platform, and of any nested mapping."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.units import show_size
from phalanx.core.views import NodeView, StatusView
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.output import line, moment_cell, pairs, section

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
    yield "Devices", f"{view.devices_held} of {view.devices_total} held; {view.devices_are}"
    yield "Jobs", ", ".join(f"{count} {state}" for state, count in view.jobs.items() if count) or "none"
    yield "Epoch", view.epoch
    yield "Tracking", f"{view.outbox} entries to write" if view.outbox else "up to date"
    yield "Processes", ", ".join(f"{name} {pid}" for name, pid in view.processes.items()) or "-"


def _node_row(node: NodeView) -> tuple[object, ...]:
    counts: dict[str, int] = {}
    for device in node.devices:
        counts[device.type] = counts.get(device.type, 0) + 1
    devices = ", ".join(f"{count} x {device_word(kind)}" for kind, count in counts.items()) or "none"
    return (
        node.node, node.state, devices, len(node.held), f"{node.cpus:g}", show_size(node.memory_bytes), node.address,
        moment_cell(node.seen_ms),
    )  # fmt: skip


def device_word(kind: str) -> str:
    """A device type in words: a CPU slot is never passed off as a GPU."""
    from phalanx.core.devices import CPU_SLOT

    return "CPU slot" if kind == CPU_SLOT else kind
