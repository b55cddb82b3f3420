"""A page of plots as one HTML file: no script, no network, light and dark. Names from outside are escaped."""

from collections.abc import Iterable
from html import escape
from typing import Final

ALONE: Final = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"
"""Stands first in a page, which then runs and fetches nothing, whatever else came to be in it."""

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5c6675;--line:#dfe3e9;--ground:#fff;--card:#f7f8fa;
--c0:#2563c9;--c1:#d9730d;--c2:#0f8a6d;--c3:#a63fb5;--c4:#b58900;--c5:#c23b3b;--c6:#5a7d2a;--c7:#7a8699}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--soft:#9aa5b4;--line:#333b47;--ground:#14181e;--card:#1c222b;
--c0:#6ea8ff;--c1:#f2a154;--c2:#4cc9a4;--c3:#d78be3;--c4:#e0c04d;--c5:#f07f7f;--c6:#a2c96a;--c7:#93a0b3}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1560px;padding:24px;background:var(--ground);color:var(--ink);
font:15px/1.45 system-ui,sans-serif}h1{font-size:22px;margin:0 0 4px}h2{font-size:15px;margin:0 0 8px}p{margin:0 0 16px;
color:var(--soft)}.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:14px 16px;min-width:0;
container-type:inline-size}
section p{font-size:13px;margin:6px 0 0}.wide{grid-column:1/-1}.tiles{display:grid;grid-template-columns:repeat(4,1fr);gap:12px;
margin:0 0 16px}@media(max-width:720px){.tiles{grid-template-columns:repeat(2,1fr)}}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;min-width:0}
.tile b{display:block;font-size:20px}.tile span{color:var(--soft);font-size:13px}svg{width:100%;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:var(--soft)}svg .axis{fill:var(--ink)}svg .end{text-anchor:end}
svg .middle{text-anchor:middle}@container(max-width:620px){svg text{font-size:15px}}
@container(max-width:440px){svg text{font-size:20px}svg .thin{display:none}}@media(max-width:480px){body{padding:12px}}
.bars{display:grid;grid-template-columns:fit-content(34%) minmax(40px,1fr) fit-content(40%);gap:6px 10px;align-items:center;
font-size:13px;color:var(--soft)}.bars .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.bars div{position:relative;height:15px}.bars i,.bars b{position:absolute;top:0;bottom:0}
.bars i{left:0;min-width:1px;border-radius:2px}.bars b{top:-3px;bottom:-3px;width:2px;background:var(--ink)}
.grid{stroke:var(--line);stroke-width:1}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.area{opacity:.18}.layer{stroke:none;opacity:.85}
.mark{stroke:var(--c5);stroke-width:1.2;stroke-dasharray:4 3}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 16px;
margin:8px 0 0;padding:0;font-size:13px}.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
table{border-collapse:collapse;width:100%;font-size:13px}.scroll{overflow-x:auto}th,td{padding:4px 10px 4px 0;text-align:right;
border-bottom:1px solid var(--line);white-space:nowrap}th:first-child,td:first-child{text-align:left}th{color:var(--soft);
font-weight:500}
""" + "".join(f".s{n}{{stroke:var(--c{n})}}.f{n}{{fill:var(--c{n})}}.b{n}{{background:var(--c{n})}}" for n in range(8))


def plot_page(title: str, inside: str) -> str:
    """The whole file."""
    viewport = "width=device-width,initial-scale=1"
    head = f"<meta charset='utf-8'>{ALONE}<meta name='viewport' content='{viewport}'>"
    head += f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body><h1>{escape(title)}</h1>{inside}</body></html>\n"


def section(title: str, inside: str, said: str = "", wide: bool = False) -> str:
    """A card with a plot, and what is said below it."""
    note = f"<p>{escape(said)}</p>" if said else ""
    return f"<section{' class=wide' if wide else ''}><h2>{escape(title)}</h2>{inside}{note}</section>"


def tiles_of(tiles: Iterable[tuple[str, str]]) -> str:
    """Figures, each with what it is."""
    shown = "".join(f"<div class='tile'><b>{escape(figure)}</b><span>{escape(what)}</span></div>" for figure, what in tiles)
    return f"<div class='tiles'>{shown}</div>"
