"""Coloured bars, crosses and rings as PNG files in a folder for each class, packed for the jobs beside this file.

python examples/images/shapes.py      # makes examples/images/made/data, and made/few/data with few bars and rings alone
phalanx submit examples/images/job.yaml
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from phalanx.job.data.tars.pack import pack

SIDE, EACH, FEW = 20, 400, 80
SHAPES = ("bar", "cross", "ring")


def drawn(shape: str, random: np.random.Generator) -> NDArray[np.uint8]:
    """A shape of some colour at some place on a dark, noisy ground."""
    image, (top, left) = random.integers(0, 60, (SIDE, SIDE, 3)), random.integers(1, SIDE - 12, 2)
    colour, part = random.integers(150, 256, 3), image[top : top + 11, left : left + 11]
    if shape == "ring":
        part[:2], part[-2:], part[:, :2], part[:, -2:] = colour, colour, colour, colour
    else:
        part[4:7] = colour
    if shape == "cross":
        part[:, 4:7] = colour
    return image.astype(np.uint8)


def make(folder: Path, each: int = EACH, shapes: Sequence[str] = SHAPES) -> Path:
    """`folder`/images and, packed, `folder`/data, which is given back."""
    random = np.random.default_rng(0)
    for shape in shapes:
        (folder / "images" / shape).mkdir(parents=True, exist_ok=True)
        for number in range(each):
            Image.fromarray(drawn(shape, random)).save(folder / "images" / shape / f"{number:03d}.png")
    return pack(folder / "images", folder / "data")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "made")
    folder = parser.parse_args().folder
    print(make(folder))
    print(make(folder / "few", FEW, ("bar", "ring")))


if __name__ == "__main__":
    main()
