"""What a job's run reads, as its file says: the data, and what else decides the order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from phalanx.core.errors import SpecError
from phalanx.core.recipe import LlamaRecipe
from phalanx.core.spec_parse import load_spec, recipe_config
from phalanx.core.training_data import DataSource, Packing
from phalanx.show.cli.overrides import changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """batch: samples of one step over all ranks. None: said neither by the file nor by an option."""

    data: DataSource
    sequence: int | None
    seed: int | None
    batch: int | None
    steps: int | None

    def needed(self, field: str) -> int:
        """Raises SpecError where it is not said."""
        value: int | None = getattr(self, field)
        if value is None:
            raise SpecError(
                f"--{field}", None, "give it: the file is not of a job with a recipe, whose hyperparameters would say it"
            )
        return value


def run_data(path: str, packing: Packing | None, **given: int | None) -> RunData:
    """Of a prepared folder, wherever it lies, read as options say, or of a job's file."""
    if Path(path).is_file():
        run = job_data(Path(path), (), **given)
        return replace(run, data=replace(run.data, packing=packing or run.data.packing))
    said = dict.fromkeys(_FIELDS) | given
    return RunData(data=DataSource(path=path, packing=packing or "concatenate"), **said)


def job_data(file: Path, changes: Sequence[str], **given: int | None) -> RunData:
    """Of a job's file, or of one that holds the `data` of a job alone. given: what options say, instead of the job.

    Raises SpecError for what `submit` would refuse too.
    """
    spec = load_spec(file, change=lambda data: changed(_job(data), changes, Path.cwd()))
    if spec.data is None:
        raise SpecError("data", None, f"{file} has none; name a job that trains on prepared data")
    said: dict[str, int | None] = dict.fromkeys(_FIELDS)
    if spec.recipe and spec.name != _NAMELESS:
        recipe = recipe_config(spec)
        if not isinstance(recipe, LlamaRecipe):
            raise SpecError("recipe", spec.recipe, f"{file} is of a job that reads images; name one that trains on tokens")
        said = {
            "sequence": recipe.sequence, "seed": recipe.seed, "steps": recipe.steps,
            "batch": recipe.batch_per_rank * recipe.accumulate * spec.num_data_ranks,
        }  # fmt: skip
    said |= {name: value for name, value in given.items() if value is not None}
    return RunData(data=spec.data, **said)


_NAMELESS: Final = "data-alone"
_FIELDS: Final = ("sequence", "seed", "batch", "steps")


def _job(data: object) -> object:
    """The least job around a file that is none."""
    if not isinstance(data, dict) or "name" in data:
        return data
    alone: dict[Any, Any] = data if "data" in data else {"data": data}
    return {"name": _NAMELESS, "kind": "train", "recipe": "llama", **alone}
