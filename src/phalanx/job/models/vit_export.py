"""A vision transformer of ours as a folder that Hugging Face's libraries read: config.json, safetensors, what to make of images."""

from collections.abc import Sequence
from pathlib import Path

from phalanx.core.pixels import Normalise
from phalanx.job.models.hf_export import FILE_BYTES_MAX, ExportDtype, appearing, put_json, put_weights
from phalanx.job.models.model_config import CONFIG
from phalanx.job.models.vit import Vit
from phalanx.job.models.vit_config import PREPROCESSOR, config_of, preprocessor_of
from phalanx.job.models.vit_names import pieces


def write_vit(
    to: Path,
    model: Vit,
    dtype: ExportDtype,
    names: Sequence[str],
    normalise: Normalise,
    file_bytes_max: int = FILE_BYTES_MAX,
) -> None:
    """As `ViTForImageClassification`. names: of the classes, by number. Weights are converted file by file. Raises as `write_hf`
    does."""
    views = {
        piece.name: weight.detach()[piece.start : piece.end].view(piece.shape)
        for name, weight in model.named_parameters()
        for piece in pieces(name, weight.shape, model.shape, "vit.")
    }
    with appearing(to) as folder:
        put_weights(folder, views, dtype, file_bytes_max)
        put_json(folder / CONFIG, config_of(model.shape, names, dtype))
        put_json(folder / PREPROCESSOR, preprocessor_of(model.shape, normalise))
