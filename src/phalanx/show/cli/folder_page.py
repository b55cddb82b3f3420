"""What people see of a prepared folder: looked at rather than read, so shares are bars and texts are text."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from phalanx.core.units import count_of, show_size
from phalanx.show.cli.data_page import show_text
from phalanx.show.cli.grid import Grid
from phalanx.show.cli.ledger_page import bar_of
from phalanx.show.cli.output import line, pairs, section
from phalanx.show.cli.pages import mapping_page

_SAMPLE_CHARS_MAX: Final = 300
_SHARE_CHARS: Final = 16
_SKIPPED: Final = "skipped_"


def folder_page(found: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Of tokens; of anything else names and values."""
    if not {"splits", "sources", "vocab_size"} <= found.keys():
        yield from mapping_page(found)
        return
    yield line(title(found), style="bold")
    yield pairs(facts(found))
    yield from section("Splits", _shares(found["splits"].items(), "tokens", "SPLIT"))
    sources = [(one["name"], one) for one in found["sources"]]
    yield from section(
        "Sources", _shares(sources, "text_bytes" if found["text_bytes"] else "documents", "SOURCE", lambda one: skipped(one) or "-")
    )
    if lengths := found.get("lengths"):
        yield from section(lengths_title(lengths), _lengths(lengths))
    for one in found.get("samples", ()):
        yield from section(sample_title(one), show_text(_cut(one["text"])))
    if found.get("left_out"):
        yield from section("Left out", _left_out(found["left_out"]))
    if found.get("note"):
        yield Text("")
        yield line(f"Note: {found['note']}", style="yellow")


def title(found: Mapping[str, Any]) -> str:
    """What it is, in one line."""
    return (
        f"{found['path']}: {count_of(found['tokens'], 'token')} of {count_of(found['documents'], 'document')} from "
        f"{count_of(len(found['sources']), 'source')}, {show_size(found['size_bytes'])} on disk"
    )


def facts(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Names and values that have no picture."""
    text = f", {found['bytes_per_token']:g} bytes of text a token" if found["text_bytes"] else ""
    yield "Vocabulary", f"{found['vocab_size']:,} tokens as {found['dtype']}{text}"
    yield "Manifest", found["manifest_hash"]
    if found.get("checksums_ok"):
        yield "Checked", "every byte is what was prepared"
    if kept := found.get("resumed"):
        went_on = f"{count_of(kept['shards'], 'shard')} with {count_of(kept['tokens'], 'token')} were kept"
        begun = f"{count_of(kept['dropped'], 'shard')} of other text or other parameters, or damaged, were not"
        yield "After a break", "; ".join([went_on] * bool(kept["shards"]) + [begun] * bool(kept["dropped"]))
    yield "Made with", ", ".join(f"{name} {value}" for name, value in found["parameters"].items())


def lengths_title(lengths: Mapping[str, Any]) -> str:
    return f"Tokens of a document: median {lengths['median']:,}, mean {lengths['mean']:,.0f}, at most {lengths['most']:,}"


def sample_title(sample: Mapping[str, Any]) -> str:
    return f"Text of {sample['split']}, from token {sample['token']:,} on"


def left_out_lines(left_out: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str]]]:
    """By reason: how much there is, and the first few."""
    for why, one in left_out.items():
        files = f" in {count_of(one['files'], 'file')}" if one.get("files", one["count"]) != one["count"] else ""
        examples = list(one.get("examples", ()))
        more = one.get("files", 0) - len(examples)
        yield (
            f"{one['count']:,} {why}{files}",
            [*examples, *[f"and {count_of(more, 'more file')}; --left-out FILE lists all"] * (more > 0)],
        )


def _shares(rows: Any, by: str, head: str, more: Any = None) -> Grid:
    """rows: names and mappings with tokens or bytes of text, and documents."""
    rows = list(rows)
    whole = sum(one[by] for _, one in rows)
    amount = {"tokens": ("TOKENS",), "text_bytes": ("TEXT",), "documents": ()}[by]
    names = (head, "", "SHARE", *amount, "DOCUMENTS", *(("NOT TAKEN",) if more else ()))
    cells = [
        (
            name, Text(bar_of(one[by], whole, _SHARE_CHARS), style="cyan"), f"{100 * one[by] / max(whole, 1):.1f}%",
            *(f"{one[by]:,}" if by == "tokens" else show_size(one[by]) for _ in amount), f"{one['documents']:,}",
            *((more(one),) if more else ()),
        )
        for name, one in rows
    ]  # fmt: skip
    return Grid(names, cells, right=("SHARE", *amount, "DOCUMENTS"), drop=("",), cut="NOT TAKEN" if more else None)


def skipped(source: Mapping[str, Any]) -> str:
    """'2 binary, 1 empty', or nothing."""
    found = ((name.removeprefix(_SKIPPED), count) for name, count in source.items() if name.startswith(_SKIPPED) and count)
    return ", ".join(f"{count:,} {name}" for name, count in found)


def _lengths(lengths: Mapping[str, Any]) -> Grid:
    most = max(one["documents"] for one in lengths["bins"])
    rows = [
        (span(one), Text(bar_of(one["documents"], most), style="cyan"), f"{one['documents']:,}")
        for one in lengths["bins"]
    ]  # fmt: skip
    return Grid(("TOKENS", "", "DOCUMENTS"), rows, right=("TOKENS", "DOCUMENTS"), drop=("",))


def span(one: Mapping[str, int]) -> str:
    """'64 to 127'."""
    return f"{one['least']:,}" if one["least"] == one["most"] else f"{one['least']:,} to {one['most']:,}"


def _left_out(left_out: Mapping[str, Any]) -> Text:
    lines = [line(text) for head, examples in left_out_lines(left_out) for text in (head, *(f"  {one}" for one in examples))]
    return Text("\n").join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _SAMPLE_CHARS_MAX else f"{text[:_SAMPLE_CHARS_MAX]}…"
