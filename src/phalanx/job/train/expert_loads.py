"""What a run says of its experts' loads: how uneven they are as metrics and in the log, and the loads themselves in a file that
`phalanx experts` reads."""

import json
import logging
from collections import deque
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from phalanx.job.sdk.session import Session
from phalanx.job.train.balance import loads_of, loads_of_all, mixture_numbers
from phalanx.job.train.replicate_experts import uneven_ranks

_log: Final = logging.getLogger(__name__)
FILE: Final = "expert-loads.json"
"""Among the job's artifacts."""
METRIC: Final = "expert_imbalance"
RANKS: Final = "rank_imbalance"
TIMES_A_RUN: Final = 200
STEPS_MAX: Final = 100
"""Whose loads are added up for the file: those of one step waver."""


class ExpertLoads:
    """Of one rank, which is silent unless it is the first; nothing of a dense model. total_steps: of the run."""

    def __init__(self, model: nn.Module, session: Session, speaks: bool, total_steps: int) -> None:
        self._model, self._session, self._speaks = model, session, speaks
        self._every, self._last = max(1, total_steps // TIMES_A_RUN), total_steps
        self._recent: deque[Tensor] = deque(maxlen=STEPS_MAX)
        self._is_told = False

    def stepped(self, step: int) -> None:
        """After the update of `step`, which all ranks made. Waits for no other rank."""
        loads_le = loads_of_all(self._model) if self._speaks else None
        if loads_le is None:
            return
        loads_le = loads_le.cpu()
        self._recent.append(loads_le)
        if step % self._every and step != self._last:
            return
        uneven, ranks = imbalance(loads_le), self._of_ranks()
        for name, values in ((METRIC, dict(enumerate(uneven))), (RANKS, ranks)):
            if values:
                self._session.metric(step=step, name=name, value=max(values.values()))
            for layer, value in values.items():
                self._session.metric(step=step, name=f"{name}.{layer}", value=value)
        worst = max(range(len(uneven)), key=uneven.__getitem__)
        of_ranks = f"; fullest rank {max(ranks.values()):.2f} x the mean" if ranks else ""
        _log.info(
            "step %d  fullest expert %.2f x the mean, in mixture %d of %d%s", step, uneven[worst], worst, len(uneven), of_ranks
        )
        self._write()

    def _of_ranks(self) -> dict[int, float]:
        """By the number of the mixture: of this rank's, since it knows of no others where their experts lie."""
        own_le = loads_of(self._model)
        uneven = uneven_ranks(self._model, own_le.tolist()) if own_le is not None else []
        return dict(zip(mixture_numbers(self._model), uneven, strict=False))  # none where experts do not lie over ranks

    def _write(self) -> None:
        """Loads are of use to who places experts, and no part of the run: without room for them it goes on."""
        total_le = torch.stack(list(self._recent)).sum(dim=0)
        try:
            path = Path(self._session.artifacts_dir) / FILE
            beside = path.with_name(f".{FILE}.tmp")
            beside.write_text(json.dumps(total_le.tolist()))
            beside.replace(path)
        except OSError as error:
            if not self._is_told:
                _log.warning("the experts' loads could not be written: %s", error)
            self._is_told = True


def imbalance(loads_le: Tensor) -> list[float]:
    """The largest load of an expert over the mean one, of each layer; 1 is even, as a layer without load is."""
    mean_l = loads_le.to(torch.float64).mean(dim=1)
    found: list[float] = torch.where(mean_l > 0, loads_le.max(dim=1).values / mean_l, 1.0).tolist()
    return found
