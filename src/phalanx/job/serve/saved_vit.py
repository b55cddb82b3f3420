"""What a run of images saved, checked before it is used."""

from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import CheckpointError
from phalanx.core.pixels import Normalise
from phalanx.job.checkpoint.digest import weights_digest
from phalanx.job.models.model_config import CONFIG, read_json
from phalanx.job.models.tensor_files import WEIGHTS
from phalanx.job.models.vit import Vit
from phalanx.job.models.vit_folder import VitFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedVit:
    """names: of the classes, by number; none where the data did not say them. normalise: how its pixels are scaled."""

    model: Vit
    names: tuple[str, ...]
    normalise: Normalise


def load_vit(folder: Path, digest: str = "") -> SavedVit:
    """Raises CheckpointError when a file is missing or damaged, or when the weights are not those of `digest` (when given, else of
    the folder's own)."""
    opened = VitFolder(folder)
    given, model = opened.given, Vit(opened.given.shape)
    if given.normalise is None:
        raise CheckpointError("model", str(folder), "is not one that a run saved")
    for name, part in model.named_children():
        opened.fill(part, name)
    wanted = digest or read_json(folder / CONFIG).get("weights_digest")
    found = weights_digest(model.state_dict())
    if found != wanted:
        fix = f"its digest is {found} and not {wanted}: the file is damaged, or another model's; take the model from a copy"
        raise CheckpointError("weights", str(folder / WEIGHTS), fix)
    return SavedVit(model=model.eval(), names=given.names, normalise=given.normalise)
