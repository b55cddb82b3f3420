"""Values of the right type and size from a config.json that is not ours. No torch."""

from collections.abc import Mapping
from typing import Any, Final

from phalanx.core.errors import CheckpointError

SIZE_MAX: Final = 1 << 24
"""Of any dimension, and far beyond any model: a damaged file must not take all memory."""
LAYERS_MAX: Final = 10_000
NUMBER_MAX: Final = 1e30
"""Whole numbers of a JSON file may be larger than any float."""


class ConfigValues:
    """Of a file at `place`. None is as absent, as transformers has it. Each raises CheckpointError naming key and value."""

    def __init__(self, config: Mapping[str, Any], place: str) -> None:
        self._config, self._place = config, place

    def whole(self, name: str, usual: int | None = None, most: int = SIZE_MAX) -> int:
        value = self._value(name, usual)
        if type(value) is not int or not 1 <= value <= most:
            raise value_error(self._place, name, value, f"is no whole number from 1 to {most}")
        return value

    def number(self, name: str, usual: float | None = None) -> float:
        value = self._value(name, usual)
        if type(value) not in (int, float) or not 0 < value <= NUMBER_MAX:
            raise value_error(self._place, name, value, "is no number above 0")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._value(name, False)
        if type(value) is not bool:
            raise value_error(self._place, name, value, "is neither true nor false")
        return value

    def architecture(self, known: Mapping[str, str]) -> str:
        """The one that `architectures` names. known: to its `model_type`."""
        said = self._config.get("architectures")
        if not (isinstance(said, list) and len(said) == 1 and isinstance(said[0], str) and said[0] in known):
            fix = f"is no architecture known here; known are {', '.join(known)}"
            raise value_error(self._place, "architectures", said, fix)
        return said[0]

    def refuse_others(self, only: Mapping[str, object]) -> None:
        """only: keys that would make another model of it, and the one value with which it is the one here."""
        for name, value in only.items():
            if self._config.get(name) not in (None, value):
                raise value_error(
                    self._place, name, self._config[name], f"is not computed here, only {value!r}; take another model"
                )

    def _value(self, name: str, usual: Any) -> Any:
        value = self._config.get(name)
        if value is None and usual is None:
            raise value_error(self._place, name, "(missing)", "is needed; take config.json from where the model came from")
        return usual if value is None else value


def value_error(place: str, name: str, value: object, fix: str) -> CheckpointError:
    """Of one key of the file at `place`."""
    return CheckpointError(f"{name} of {place}", value, fix)
