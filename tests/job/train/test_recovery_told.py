"""What the first living rank of a gang says of a fault, and when."""

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec import LayoutSpec
from phalanx.core.spec_layout import PLAIN
from phalanx.job.sdk.gang import Place
from phalanx.job.train import recover
from phalanx.job.train.device import Rank


@dataclass
class _Heard:
    said: list[tuple[str, Any]] = field(default_factory=list)
    layout: LayoutSpec = PLAIN

    def recovered(self, **what: object) -> None:
        self.said.append(("recovered", what["absent"]))


@pytest.mark.parametrize("rank", [0, 1])
def test_who_is_in_the_gang_is_said_before_the_model_also_where_no_step_was_left_to_make(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = _Heard()
    here = Rank(rank=rank, world_size=2, device=torch.device("cpu"), device_name="cpu", generation=2, slots=(1, 2), num_slots=3)
    training = SimpleNamespace(rank=here, session=heard, traces=[])
    place: Any = SimpleNamespace(generation=2, why="rank 0 was killed by SIGKILL", since_ms=0, planned=False)
    gang: Any = SimpleNamespace(settled=lambda: None, timeouts=SimpleNamespace(collective_ms=2_000))

    def finish(*_: object) -> Path:
        heard.said.append(("model", None))
        return Path("/m")

    def set_up(one: recover.Recipe, *_: object) -> Any:
        one._watch.begins(recover.Fault(place, 9, {}), 9)
        return training, None, None

    monkeypatch.setattr(recover, "saving", lambda *_: nullcontext())
    monkeypatch.setattr(recover, "run", lambda *_: None)
    monkeypatch.setattr(recover, "finish", finish)
    monkeypatch.setattr(recover.Recipe, "_set_up", set_up)
    unused: Any = None
    recipe = recover.Recipe(gang, LlamaRecipe(), unused, unused)
    recipe._session = heard  # type: ignore[assignment] # all that is said
    recipe._watch.snapshots = SimpleNamespace(new_model=lambda: None)  # type: ignore[assignment] # all that is asked of them
    at: Place = place
    recipe._generation(here, at)
    recipe._watch.tell_fault(training)  # type: ignore[arg-type] # once is enough
    assert heard.said == [("recovered", (0,)), ("model", None)][rank:]
