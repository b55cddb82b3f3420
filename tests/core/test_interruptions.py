"""What shims say of interruptions, which the control plane understands by the very words."""

from pathlib import Path

import phalanx
from phalanx.core import interruptions


def test_each_is_written_in_one_place() -> None:
    """Written twice, one could be changed without the other, and the control plane would take it for something else."""
    said = [words for name, words in vars(interruptions).items() if name.startswith("WITH_") and isinstance(words, str)]
    sources = [path.read_text() for path in Path(phalanx.__file__).parent.rglob("*.py")]
    assert len(said) >= 2
    assert {words: sum(f'"{words}"' in source for source in sources) for words in said} == dict.fromkeys(said, 1)
