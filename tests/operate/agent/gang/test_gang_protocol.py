"""Nothing in the gang's protocol is dead: whatever is understood somewhere is said by somebody."""

import inspect
from types import ModuleType
from typing import get_args

import pytest

from phalanx.operate.agent.gang import coordinator, nodes, relay
from phalanx.operate.agent.gang.events import Event


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: str(kind.__name__))
def test_every_event_of_the_gang_is_made_of_something_that_was_heard(kind: type) -> None:
    assert f"{kind.__name__}(" in inspect.getsource(coordinator)


@pytest.mark.parametrize(("words", "speaker"), [(nodes._SAYS, relay), (relay._DOES, nodes)])
def test_every_word_between_two_shims_is_said(words: dict[str, object], speaker: ModuleType) -> None:
    said = inspect.getsource(speaker)
    assert [word for word in words if f'{{"do": "{word}"' not in said] == []
