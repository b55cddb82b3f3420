"""config.json of a folder with a vision transformer: Hugging Face's, or that of a model that a run of ours saved. Strict: what we
would compute otherwise is refused. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, get_args

from phalanx.core import wire
from phalanx.core.errors import CheckpointError
from phalanx.core.pixels import MEANS_AND_DEVIATIONS, Normalise
from phalanx.core.recipe import reads_images
from phalanx.core.vit_recipe import CLASSES_MAX, IMAGE_MAX
from phalanx.core.vit_shape import CHANNELS, VitShape
from phalanx.job.models.config_values import LAYERS_MAX, SIZE_MAX, ConfigValues, value_error
from phalanx.job.models.model_config import CONFIG, is_own, read_json

CLASSIFIER: Final = "ViTForImageClassification"
ARCHITECTURES: Final = {CLASSIFIER: "vit", "ViTModel": "vit"}
"""As `architectures` names them, to their `model_type`. The second has no head."""
PREPROCESSOR: Final = "preprocessor_config.json"
"""The file beside weights that says what is made of an image."""
_ONLY: Final[Mapping[str, object]] = {
    "hidden_act": "gelu", "qkv_bias": True, "num_channels": CHANNELS, "quantization_config": None,
}  # fmt: skip
"""What would make another model of it, and the only value with which it is the one here."""
_CLASSES: Final = 2
"""Transformers' own where the file says nothing of classes."""
_BICUBIC: Final = 3
"""Pillow's number of it."""
_CLOSE: Final = 1e-3
_OF_BYTES: Final = 1 / 255
"""By which a pixel is multiplied before it is scaled further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenVit:
    """What a folder says of its model. shape: its `classes` are those of the head, 0 without one. own: as a run of ours saves it,
    with our names. prefix: of Hugging Face's names of all but the head. names: of the classes, by number; none where they are not
    said. normalise: how its pixels were scaled; None where nobody says."""

    shape: VitShape
    own: bool
    prefix: str
    names: tuple[str, ...]
    normalise: Normalise | None


def read_vit(folder: Path) -> GivenVit:
    """Raises CheckpointError naming key, value and what is known here."""
    config = read_json(folder / CONFIG)
    return _own(folder, config) if is_own(config) else _theirs(folder, config)


def why_new_head(given: GivenVit, classes: int, names: Sequence[str]) -> str:
    """Why a run begins with a head of its own; '' where it takes the folder's. classes: that the run tells apart. names: of the
    data's classes, by number; none where it does not say them.

    Names alone that differ are no reason: ImageNet's are numbers in one place and words in another.
    """
    if not given.shape.classes:
        return "the folder has none"
    if given.shape.classes != classes:
        return f"the folder's is for {given.shape.classes}"
    if given.names != tuple(names) and sorted(given.names) == sorted(names):
        return "the folder's is for the same in another order"
    return ""


def config_of(shape: VitShape, names: Sequence[str], dtype: str) -> dict[str, Any]:
    """What config.json says of a model of ours. names: of its first classes; others are called as transformers does."""
    labels = {number: names[number] if number < len(names) else f"LABEL_{number}" for number in range(shape.classes)}
    return {
        "architectures": [CLASSIFIER], "model_type": ARCHITECTURES[CLASSIFIER], "hidden_size": shape.dim,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "intermediate_size": shape.ffn_dim,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": shape.norm_epsilon, "image_size": shape.image, "patch_size": shape.patch, "num_channels": CHANNELS,
        "qkv_bias": True, "torch_dtype": dtype, "id2label": {str(number): name for number, name in labels.items()},
        "label2id": {name: number for number, name in labels.items()},
    }  # fmt: skip


def preprocessor_of(shape: VitShape, normalise: Normalise) -> dict[str, Any]:
    """What is made of an image that is scored: the square in its middle, scaled. Of transformers' processors CLIP's does that, and
    ViT's own would press all of the image into a square."""
    mean, deviation = MEANS_AND_DEVIATIONS[normalise]
    return {
        "image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True,
        "do_resize": True, "size": {"shortest_edge": shape.image}, "resample": _BICUBIC,
        "do_center_crop": True, "crop_size": {"height": shape.image, "width": shape.image},
        "do_rescale": True, "rescale_factor": _OF_BYTES,
        "do_normalize": True, "image_mean": list(mean), "image_std": list(deviation),
    }  # fmt: skip


def _own(folder: Path, config: Mapping[str, Any]) -> GivenVit:
    if not reads_images(config["recipe"]):
        raise CheckpointError("model", str(folder), "is a model of language, and here a model of images is needed")
    try:
        shape: VitShape = wire.build(VitShape, config["shape"])
        normalise: Normalise = wire.build(Normalise, config["config"]["normalise"])
        names: tuple[str, ...] = wire.build(tuple[str, ...], config["classes"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError("config.json", str(folder), f"is not one of a saved model ({error})") from error
    if shape.classes < 1 or next(_beyond(shape), None) or next(shape.problems(), None):
        raise CheckpointError("shape", str(folder / CONFIG), "is what no model can have")
    return GivenVit(shape=shape, own=True, prefix="", names=names, normalise=normalise)


def _beyond(shape: VitShape) -> Iterator[str]:
    """Names of numbers that are larger than any model's."""
    most = {"image": IMAGE_MAX, "layers": LAYERS_MAX, "classes": CLASSES_MAX}
    return (name for name in VitShape.__slots__ if getattr(shape, name) > most.get(name, SIZE_MAX))


def _theirs(folder: Path, config: Mapping[str, Any]) -> GivenVit:
    place = str(folder / CONFIG)
    read = ConfigValues(config, place)
    architecture = read.architecture(ARCHITECTURES)
    read.refuse_others(_ONLY)
    classes, names = _classes(config, place) if architecture == CLASSIFIER else (0, ())
    shape = VitShape(
        image=_side(config, place, "image_size"),
        patch=_side(config, place, "patch_size"),
        dim=read.whole("hidden_size"),
        layers=read.whole("num_hidden_layers", most=LAYERS_MAX),
        heads=read.whole("num_attention_heads"),
        ffn_dim=read.whole("intermediate_size"),
        classes=classes,
        norm_epsilon=read.number("layer_norm_eps"),
    )
    theirs = {"image": "image_size", "dim": "hidden_size"}
    for name, value, fix in replace(shape, classes=1).problems():
        raise value_error(place, theirs.get(name, name), value, f"is what no model can have; {fix}")
    prefix = "vit." if architecture == CLASSIFIER else ""
    return GivenVit(shape=shape, own=False, prefix=prefix, names=names, normalise=_normalise(folder))


def _side(config: Mapping[str, Any], place: str, name: str) -> int:
    """Pixels of a square's; some files say height and width."""
    said = config.get(name)
    if isinstance(said, list) and len(said) == 2 and said[0] == said[1]:
        said = said[0]
    return ConfigValues({name: said}, place).whole(name, most=IMAGE_MAX)


def _classes(config: Mapping[str, Any], place: str) -> tuple[int, tuple[str, ...]]:
    """Of the head, 0 without one; and their names."""
    labels = config.get("id2label")
    if labels is None:
        return ConfigValues(config, place).whole("num_labels", _CLASSES, most=CLASSES_MAX), ()
    if not isinstance(labels, Mapping) or len(labels) > CLASSES_MAX:
        raise value_error(place, "id2label", type(labels).__name__, f"is no mapping from at most {CLASSES_MAX} numbers to names")
    names = [labels.get(str(number)) for number in range(len(labels))]
    said = all(isinstance(name, str) and name != f"LABEL_{number}" for number, name in enumerate(names))
    return len(names), tuple(str(name) for name in names) if said else ()


def _normalise(folder: Path) -> Normalise | None:
    """As the file beside the weights says it, where there is one. Raises CheckpointError for another way than those known here."""
    if not (folder / PREPROCESSOR).exists():
        return None
    config, place = read_json(folder / PREPROCESSOR), str(folder / PREPROCESSOR)
    ConfigValues(config, place).refuse_others({"do_normalize": True, "do_rescale": True})
    rescaled = config.get("rescale_factor")
    if rescaled is not None and not _are_close([rescaled], [_OF_BYTES], within=1e-6):
        fix = f"is not computed here, only {_OF_BYTES}; take another model, or take that file away to train with it"
        raise value_error(place, "rescale_factor", rescaled, fix)
    said = config.get("image_mean"), config.get("image_std")
    if None in said:
        return None
    for name in get_args(Normalise):
        if all(_are_close(one, known) for one, known in zip(said, MEANS_AND_DEVIATIONS[name], strict=True)):
            return name  # type: ignore[no-any-return]
    known = ", ".join(f"{list(mean)} and {list(deviation)} ({name})" for name, (mean, deviation) in MEANS_AND_DEVIATIONS.items())
    fix = f"are not computed here, only {known}; take another model, or take that file away to train with one of these"
    raise value_error(place, "image_mean and image_std", said, fix)


def _are_close(said: object, known: Sequence[float], within: float = _CLOSE) -> bool:
    if not isinstance(said, list) or len(said) != len(known) or not all(type(one) in (int, float) for one in said):
        return False
    return all(abs(one - other) < within for one, other in zip(said, known, strict=True))
