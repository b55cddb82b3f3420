"""What the bytes of an MDS column mean. Pickles are never read: whoever wrote them could run anything here."""

import io
import json
import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SCALARS: Final = {
    "int": "<i8", "uint8": "<u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8", "int8": "<i1", "int16": "<i2", "int32": "<i4",
    "int64": "<i8", "float16": "<f2", "float32": "<f4", "float64": "<f8",
}  # fmt: skip
_ARRAY: Final = "ndarray"
_ARRAY_TYPES: Final = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32", 64: "uint64",
    65: "int64", 66: "float64",
}  # fmt: skip
"""By the byte that comes first where the column does not fix the type."""

_SHAPE_TYPES: Final = ("<u1", "<u2", "<u4", "<u8")
_PIL_BANDS: Final = {"L": 1, "RGB": 3, "RGBA": 4, "CMYK": 4, "YCbCr": 3, "HSV": 3, "LA": 2}
_IMAGES: Final = {"jpeg": "jpg", "png": "png"}
_TEXTS: Final = ("str", "str_decimal")
_NUMBERS: Final = ("str_int", "str_float")


def fixed_size(encoding: str) -> int | None:
    """Bytes of each value; None where they vary. Raises ValueError for what cannot be read."""
    if encoding in _SCALARS:
        return np.dtype(_SCALARS[encoding]).itemsize
    if encoding.split(":")[0] == _ARRAY:
        dtype, shape = _fixed(encoding)
        return None if dtype is None or shape is None else math.prod(shape) * dtype.itemsize
    if encoding == "pkl":
        raise ValueError("pickles run code when they are read; write that column again as json, ndarray or bytes")
    if encoding not in {"bytes", "json", "pil", *_IMAGES, *_TEXTS, *_NUMBERS}:
        raise ValueError("this encoding is not read; write that column again as bytes, jpeg, png, ndarray or json")
    return None


def ending(encoding: str) -> str:
    """Under which a column's values are kept as files."""
    name = encoding.split(":")[0]
    if name in _IMAGES:
        return _IMAGES[name]
    if name in (_ARRAY, "pil"):
        return "npy"
    return {"bytes": "bin"}.get(name) or ("txt" if name in _TEXTS else "json")


def file_bytes(encoding: str) -> Callable[[bytes], bytes]:
    """From a value of MDS to the bytes of a file with its ending: images, text, JSON and raw bytes stay as they are, numbers become
    JSON, arrays and PIL's raw images `.npy`. What it gives raises ValueError for values that are none."""
    name = encoding.split(":")[0]
    if name in _SCALARS:
        return lambda data: json.dumps(np.frombuffer(data, _SCALARS[name])[0].item()).encode()
    if name == _ARRAY:
        dtype, shape = _fixed(encoding)
        return lambda data: _npy(_array(data, dtype, shape))
    if name == "pil":
        return lambda data: _npy(_pil(data))
    return _checked.get(name, lambda data: data)


def array_of(encoding: str) -> Callable[[bytes], NDArray[Any]]:
    """From a value of an `ndarray` column to the array."""
    dtype, shape = _fixed(encoding)
    return lambda data: _array(data, dtype, shape)


def _fixed(encoding: str) -> tuple[np.dtype[Any] | None, tuple[int, ...] | None]:
    """Type and shape of an `ndarray` column, as far as it fixes them."""
    parts = encoding.split(":")
    if len(parts) > 3 or (len(parts) > 1 and parts[1] not in _ARRAY_TYPES.values()):
        raise ValueError("this is no type of an ndarray column")
    dtype = np.dtype(parts[1]).newbyteorder("<") if len(parts) > 1 else None
    shape = tuple(int(length) for length in parts[2].split(",")) if len(parts) > 2 else None
    if shape is not None and (len(shape) > 32 or min(shape) < 1 or math.prod(shape) > 2**32):
        raise ValueError("this is no shape of an ndarray column")
    return dtype, shape


def _array(data: bytes, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None) -> NDArray[Any]:
    try:
        if dtype is None:
            dtype, data = np.dtype(_ARRAY_TYPES[data[0]]).newbyteorder("<"), data[1:]
        if shape is None:
            ndim, width = data[0] >> 2, _SHAPE_TYPES[data[0] & 3]
            shape = tuple(np.frombuffer(data, width, ndim, 1).tolist())
            data = data[1 + ndim * np.dtype(width).itemsize :]
        if math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(f"{len(data)} bytes are no {dtype.name} of shape {list(shape)}")
        return np.frombuffer(data, dtype).reshape(shape)
    except (KeyError, IndexError) as error:
        raise ValueError("it begins with no type or shape of an array") from error


def _pil(data: bytes) -> NDArray[np.uint8]:
    """[height, width, bands], without the last where there is one band."""
    if len(data) < 12:
        raise ValueError("it is too short for an image")
    width, height, length = np.frombuffer(data, "<u4", 3).tolist()
    mode = bytes(data[12 : 12 + length]).decode(errors="replace")
    if mode not in _PIL_BANDS:
        raise ValueError(f"PIL's mode {mode[:8]!r} is not read; write that column again as png")
    bands = _PIL_BANDS[mode]
    return _array(data[12 + length :], np.dtype(np.uint8), (height, width, bands) if bands > 1 else (height, width)).astype(
        np.uint8
    )


def _npy(array: NDArray[Any]) -> bytes:
    made = io.BytesIO()
    np.save(made, array, allow_pickle=False)
    return made.getvalue()


def _text(data: bytes) -> bytes:
    data.decode()
    return data


def _number(kind: type[int] | type[float]) -> Callable[[bytes], bytes]:
    def checked(data: bytes) -> bytes:
        return json.dumps(kind(data.decode())).encode()

    return checked


def _json(data: bytes) -> bytes:
    try:
        json.loads(data)
    except RecursionError as error:
        raise ValueError("JSON that is nested too deeply") from error
    return data


_checked: Final[dict[str, Callable[[bytes], bytes]]] = {
    "str": _text, "str_decimal": _text, "json": _json, "str_int": _number(int), "str_float": _number(float),
}  # fmt: skip
