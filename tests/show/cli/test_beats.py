"""What is said of long work off a terminal: how far it is, every ten seconds, even while nothing changes."""

from threading import Event

import pytest

from phalanx.show.cli.beats import BEAT_S, beats
from phalanx.show.cli.counted import counted
from phalanx.show.cli.stages import stages


class Soon(Event):
    """Over after so many waits, none of which takes any time."""

    def __init__(self, waits: int) -> None:
        super().__init__()
        self.waited: list[float | None] = []
        self._left = waits

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        self._left -= 1
        return self._left < 0


def test_a_line_every_ten_seconds_until_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    over, told = Soon(2), iter(["no jobs over yet", "3 of 9 jobs over"])
    with beats(lambda: next(told), over):
        pass
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["no jobs over yet, after 0.0s", "3 of 9 jobs over, after 0.0s"]
    assert over.waited[:2] == [BEAT_S, BEAT_S] and over.is_set()


def test_it_ends_with_what_it_tells_of(capsys: pytest.CaptureFixture[str]) -> None:
    over = Event()
    with pytest.raises(KeyboardInterrupt), beats(lambda: "x", over):
        raise KeyboardInterrupt
    assert over.is_set()
    assert capsys.readouterr().err == ""


def test_what_is_counted_and_what_has_stages_say_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []

    def watching(what):  # type: ignore[no-untyped-def]  # a test's shorthand
        said.append(what)
        return beats(what, Soon(0))

    monkeypatch.setattr("phalanx.show.cli.counted.beats", watching)
    monkeypatch.setattr("phalanx.show.cli.stages.beats", watching)
    with counted("jobs over") as progress:
        assert said[0]() == "no jobs over yet"
        progress(1234, 82_247)
        assert said[0]() == "1,234 of 82,247 jobs over"
    with stages() as stage:
        stage("reading", 2**20, 2**21)
        assert said[1]() == "reading: 1.0 MiB of 2.0 MiB"
        stage("tokenizing", 2**10, 0)
        assert said[1]() == "tokenizing: 1.0 KiB"
