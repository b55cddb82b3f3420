"""What a recipe of images needs of a data set, as far as its manifest tells. Pure; `submit` and ranks say it in the same words."""

from collections.abc import Mapping
from typing import Final

from phalanx.core.errors import DataError, SpecError
from phalanx.core.training_data import ONE, DataSource
from phalanx.job.data.images.decode import CLASS_FIELD, FORMATS
from phalanx.job.data.tars.manifest import FieldCount, SampleManifest

_SHOWN: Final = 8
"""Names of fields, at most."""


def check_fields(asked: DataSource, manifest: SampleManifest) -> None:
    """Raises DataError for data in which some samples have no image that is read, but for so many as may be set aside, or no
    class."""
    spared = asked.bad_data_max * manifest.samples if asked.on_bad_data == "quarantine" else 0
    lacking = manifest.samples - sum(_samples(manifest.fields, name) for name in FORMATS)
    if lacking > spared:
        fix = f"{lacking} of {manifest.samples} samples have no image that is read ({', '.join(FORMATS)})"
        others = sorted(set(manifest.fields) - {CLASS_FIELD, *FORMATS})
        there = f"; what else there is: {', '.join(others[:_SHOWN])}" if others else ""
        fix = f"{fix}{there}; convert them, or make the data without them (`phalanx data pack --ending`)"
        raise DataError(asked.field_of(ONE), asked.path, fix)
    if unnamed := manifest.samples - _samples(manifest.fields, CLASS_FIELD):
        fix = f"{unnamed} of {manifest.samples} samples have no field {CLASS_FIELD}, the number of their class; add it"
        raise DataError(asked.field_of(ONE), asked.path, fix)


def num_classes(asked: int, named: int) -> int:
    """That the model tells apart. asked: by the recipe; 0 for as many as the data names. named: by the data; 0 where it does not.
    Raises SpecError where nobody says how many there are, or fewer are asked for than there are."""
    if not asked and not named:
        fix = "write how many there are: the data does not name them (`phalanx data index --classes FILE` does)"
        raise SpecError("hyperparameters.classes", asked, fix)
    if asked and asked < named:
        raise SpecError("hyperparameters.classes", asked, f"the data has {named}; write at least that, or leave it out")
    return asked or named


def _samples(fields: Mapping[str, FieldCount], name: str) -> int:
    """With a field. Of a sample with several images each counts: then fewer may be found to lack one than do."""
    return fields[name].samples if name in fields else 0
