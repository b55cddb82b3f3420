"""The ledger's log, folded piece by piece as it grows."""

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.events import Event
from phalanx.record.telemetry.ledger import Folding
from phalanx.record.telemetry.ledger.history import fold
from tests.drawn import examples
from tests.record.telemetry.test_ledger import LOGS, SCRAMBLED


@settings(max_examples=examples(60), deadline=None)
@given(LOGS | SCRAMBLED, st.integers(0, 40), st.integers(0, 40))
def test_a_log_that_is_folded_in_pieces_is_what_it_is_folded_at_once(events: list[Event], first: int, second: int) -> None:
    folding = Folding()
    parts = (events[:first], events[first : first + second], events[first + second :])
    found = []
    for part in parts:
        folding.take(part)
        found.append(folding.history())
    folded = [fold(events[:first]), fold(events[: first + second]), fold(events)]
    assert found == folded, "also what was asked for before the next piece came"
