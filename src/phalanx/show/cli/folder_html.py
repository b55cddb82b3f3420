"""A prepared folder as one HTML page: no script, no network, light and dark. Names and texts may come from anybody."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final, NamedTuple

from phalanx.core.plot_page import ALONE
from phalanx.core.units import count_of, show_amount_of_data, show_size
from phalanx.show.cli.folder_page import facts, left_out_lines, lengths_title, sample_title, skipped, span
from phalanx.show.cli.text import clean

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5c6675;--line:#dfe3e9;--ground:#fff;--card:#f7f8fa;--bar:#2563c9;--warm:#b3560b}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b4;--line:#333b47;--ground:#14181e;--card:#1c222b;--bar:#6ea8ff;
--warm:#f2a154}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1280px;padding:24px;background:var(--ground);color:var(--ink);
font:15px/1.45 system-ui,sans-serif}h1{font-size:22px;margin:0 0 16px;overflow-wrap:anywhere}h2{font-size:15px;margin:0 0 10px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,150px),1fr));gap:12px;margin:0 0 16px}
.tile,section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px;min-width:0}
.tile b{display:block;font-size:20px}.tile span{color:var(--soft);font-size:13px}
main{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}.wide{grid-column:1/-1}
.bars{display:grid;grid-template-columns:fit-content(34%) minmax(40px,1fr) auto;gap:6px 12px;align-items:center;font-size:13px}
.bars .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}.bars .number{text-align:right;color:var(--soft);
font-variant-numeric:tabular-nums}.bars .note{grid-column:1/-1;color:var(--warm);margin-top:-4px}
.bars i{display:block;height:14px;min-width:1px;border-radius:2px;background:var(--bar)}
pre{margin:0;font:13px/1.5 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;max-height:16em;overflow:auto}
dl{display:grid;grid-template-columns:auto 1fr;gap:4px 16px;margin:0;font-size:13px}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}ul{margin:4px 0 10px;padding-left:18px;font-size:13px;color:var(--soft);overflow-wrap:anywhere}
@media(max-width:480px){.bars .more{display:none}}
@media(max-width:480px){body{padding:12px}.tiles{grid-template-columns:1fr 1fr}dl{grid-template-columns:1fr}dd{margin-bottom:6px}}
"""


class _Row(NamedTuple):
    """words: the amount that the bar shows, in words. documents: said beside it where there is room. remark: below it."""

    name: str
    amount: int
    words: str
    documents: int | None = None
    remark: str = ""


def folder_html(found: Mapping[str, Any]) -> str:
    """The whole file, of a folder of tokens."""
    by = "text_bytes" if found["text_bytes"] else "documents"
    splits = [_Row(name, one["tokens"], _counted(one, "tokens"), one["documents"]) for name, one in found["splits"].items()]
    sources = [_Row(one["name"], one[by], _counted(one, by), one["documents"], _not_taken(one)) for one in found["sources"]]
    parts = [_section("Splits", _bars(splits)), _section("Sources", _bars(sources))]
    if lengths := found.get("lengths"):
        rows = [_Row(span(one), one["documents"], count_of(one["documents"], "document")) for one in lengths["bins"]]
        parts.append(_section(lengths_title(lengths), _bars(rows, of_the_most=True), wide=True))
    parts += [_section(sample_title(one), f"<pre>{_safe(one['text'], keep=chr(10))}</pre>") for one in found.get("samples", ())]
    if found.get("left_out"):
        parts.append(_section("Left out", "".join(_reasons(found["left_out"])), wide=True))
    notes = [("Note", found["note"])] if found.get("note") else []
    said = "".join(f"<dt>{_safe(name)}</dt><dd>{_safe(value)}</dd>" for name, value in [*facts(found), *notes])
    parts.append(_section("What it is", f"<dl>{said}</dl>", wide=True))
    name = _safe(found["path"])
    viewport = "<meta name='viewport' content='width=device-width,initial-scale=1'>"
    head = f"<meta charset='utf-8'>{ALONE}{viewport}<title>{name}</title><style>{_STYLE}</style>"
    body = f"<h1>{name}</h1>{_tiles(found)}<main>{''.join(parts)}</main>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>\n"


def _tiles(found: Mapping[str, Any]) -> str:
    tiles = [
        (_short(found["tokens"]), "tokens"),
        (_short(found["documents"]), "documents"),
        (show_size(found["size_bytes"]), "on disk"),
        (f"{found['vocab_size']:,}", f"tokens in the vocabulary, {found['dtype']}"),
    ]
    if found["text_bytes"]:
        tiles.append((f"{found['bytes_per_token']:g}", "bytes of text a token"))
    shown = "".join(f"<div class='tile'><b>{_safe(figure)}</b><span>{_safe(what)}</span></div>" for figure, what in tiles)
    return f"<div class='tiles'>{shown}</div>"


def _short(count: int) -> str:
    """'72,393', or '1.4 G' where nobody reads digits."""
    return f"{count:,}" if count < 10**7 else show_amount_of_data(count).removesuffix("B")


def _section(title: str, inside: str, wide: bool = False) -> str:
    return f"<section{' class=wide' if wide else ''}><h2>{_safe(title)}</h2>{inside}</section>"


def _bars(rows: Iterable[_Row], of_the_most: bool = False) -> str:
    """Bars are shares of the whole, or heights of a histogram."""
    rows = list(rows)
    amounts = [row.amount for row in rows]
    whole = max(1, max(amounts, default=0) if of_the_most else sum(amounts))
    return f"<div class='bars'>{''.join(_bar(row, whole, of_the_most) for row in rows)}</div>"


def _bar(row: _Row, whole: int, of_the_most: bool) -> str:
    share = 100 * row.amount / whole
    words = filter(None, ["" if of_the_most else f"{share:.1f} %", row.words])
    more = f"<span class='more'> · {count_of(row.documents, 'document')}</span>" if row.documents is not None else ""
    bar = f"<div><i style='width:{share:.2f}%'></i></div>" if row.amount else "<div></div>"
    note = f"<span class='note'>{_safe(row.remark)}</span>" if row.remark else ""
    name = _safe(row.name)
    number = f"<span class='number'>{_safe(' · '.join(words))}{more}</span>"
    return f"<span class='name' title='{name}'>{name}</span>{bar}{number}{note}"


def _counted(one: Mapping[str, Any], by: str) -> str:
    """The amount that a bar shows, where it is not the documents, which stand beside it anyway."""
    if by == "tokens":
        return count_of(one["tokens"], "token")
    return show_size(one["text_bytes"]) if by == "text_bytes" else ""


def _not_taken(source: Mapping[str, Any]) -> str:
    return f"not taken: {found}" if (found := skipped(source)) else ""


def _reasons(left_out: Mapping[str, Any]) -> Iterable[str]:
    for head, examples in left_out_lines(left_out):
        yield f"<b>{_safe(head)}</b><ul>{''.join(f'<li>{_safe(one)}</li>' for one in examples)}</ul>"


def _safe(text: object, keep: str = "") -> str:
    return escape(clean(text, keep=keep), quote=True)
