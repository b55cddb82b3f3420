"""What people see of the data that a model reads."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from phalanx.core.data_views import PieceView, SamplesView, SampleView
from phalanx.core.units import count_of
from phalanx.show.cli.output import line
from phalanx.show.cli.text import clean

_INDENT = 4
"""Of texts: heads stand further left, so that no text can look like one."""


def samples_page(view: SamplesView) -> Iterator[RenderableType]:
    """Each sample with the documents that it is made of."""
    yield line(_what(view), style="bold")
    if view.note:
        yield line(f"Note: {view.note}")
    for sample in view.samples:
        yield Text("")
        yield line(_sample_head(view, sample), style="bold underline")
        for piece in sample.pieces:
            yield line(f"  {_piece_head(piece)}", style="cyan")
            if piece.text:
                yield show_text(piece.text)
            if piece.ids:
                yield show_text(" ".join(map(str, piece.ids)), style="dim")
        if sample.padding:
            yield line(f"  padding: {count_of(sample.padding, 'token')}", style="cyan")
    if view.left_out:
        yield Text("")
        yield line(f"{view.left_out:,} more of them; -n shows more")


def _what(view: SamplesView) -> str:
    rows = f"{view.sequence} tokens, {'whole documents' if view.packing == 'best_fit' else 'documents end to end'}"
    if len(view.sources) == 1:
        ((_, one),) = view.sources.items()
        data = f"{one.samples:,} samples of {rows}, in {view.split} of {one.path}"
    else:
        sizes = ", ".join(f"{name} ({one.samples:,})" for name, one in view.sources.items())
        data = f"samples of {rows}, in {view.split} of {sizes}"
    if view.step is None:
        return data
    return f"Step {view.step} of a run of {count_of(view.batch or 0, 'sample')} a step, seed {view.seed}; {data}"


def _sample_head(view: SamplesView, sample: SampleView) -> str:
    name = f"sample {sample.sample}" + (f" of {sample.source}" if len(view.sources) > 1 else "")
    if sample.position is None or sample.epoch is None:
        return name
    return f"{name}, read as number {sample.position:,} of the run, in epoch {sample.epoch + 1}"


def _piece_head(piece: PieceView) -> str:
    begins, ends = piece.start == 0, piece.start + piece.tokens == piece.document_tokens
    if begins and ends:
        return f"document {piece.document}, all of its {count_of(piece.tokens, 'token')}"
    part = "begins here" if begins else "ends here" if ends else "goes on"
    last = piece.start + piece.tokens
    return f"document {piece.document} {part}: tokens {piece.start:,} to {last - 1:,} of its {piece.document_tokens:,}"


def show_text(text: str, style: str = "") -> Padding:
    """Its own lines and tabs stay; whatever else could steer a terminal is an escape. What is too long goes on below itself."""
    return Padding(Text(clean(text.removesuffix("\n"), keep="\n\t"), style=style, overflow="fold"), (0, 0, 0, _INDENT))
