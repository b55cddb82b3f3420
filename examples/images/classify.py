"""A tiny classifier of generated images, trained from tars with augmentation, that goes on bit for bit after it was stopped.

python examples/images/classify.py --folder DIR            # makes the images, packs them, trains
python examples/images/classify.py --folder DIR --stop 15  # ends after step 15; again without --stop goes on from there
phalanx data audit DIR                                     # over both runs, each image was read exactly once an epoch
"""

import argparse
from contextlib import closing
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from phalanx.job.data.blocks import BlockShuffle
from phalanx.job.data.deliveries import DeliveryLog
from phalanx.job.data.draws import PlainOrder
from phalanx.job.data.sound import BadData
from phalanx.job.data.tars.open import Sample, SampleData, open_samples
from phalanx.job.data.tars.pack import pack
from phalanx.job.train.field_datasets import FieldBatches

SIDE, EACH, BATCH, STEPS = 12, 40, 16, 40
SHAPES = ("bar", "cross", "ring")


def drawn(shape: str, random: np.random.Generator) -> NDArray[np.uint8]:
    """A bright shape at some place on a dark, noisy ground."""
    image, (top, left) = random.integers(0, 60, (SIDE, SIDE)), random.integers(0, SIDE - 7, 2)
    part = image[top : top + 7, left : left + 7]
    if shape == "ring":
        part[[0, 6], :] = part[:, [0, 6]] = 220
    else:
        part[3, :] = 220
    if shape == "cross":
        part[:, 3] = 220
    return image.astype(np.uint8)


def data_in(folder: Path) -> SampleData:
    """The packed images, which are made when they are not there."""
    if not (folder / "data").exists():
        random = np.random.default_rng(0)
        for shape in SHAPES:
            (folder / "images" / shape).mkdir(parents=True)
            for number in range(EACH):
                np.save(folder / "images" / shape / f"{number:03d}.npy", drawn(shape, random))
        pack(folder / "images", folder / "data", endings=["npy"])
    return open_samples(folder / "data")


def decode(sample: Sample) -> tuple[Tensor, int]:
    pixels = np.load(BytesIO(sample.fields["npy"]))
    return torch.from_numpy(pixels).float()[None] / 255, int(sample.fields["cls"])


def augment(item: tuple[Tensor, int], random: np.random.Generator) -> tuple[Tensor, int]:
    """Turned, and brighter or darker: as the sample and the epoch say."""
    image, label = item
    return image.rot90(int(random.integers(4)), (1, 2)) * float(random.uniform(0.8, 1.2)), label


def train(folder: Path, stop: int = STEPS) -> list[float]:
    """The losses of the steps that were not done before."""
    data = data_in(folder)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(16, len(SHAPES)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    order = PlainOrder(num_samples=len(data), seed=0, global_batch=BATCH, shuffle=BlockShuffle(10, 9))
    sound = BadData(policy="quarantine")  # a damaged image is replaced by another one, and the state says so
    batches = FieldBatches(data, order, decode, augment, stop=stop, threads=2, bad_data=sound)
    saved, losses = folder / "saved.pt", []
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        batches.load_state_dict(state["data"])
    records = folder / "deliveries"
    with closing(DeliveryLog(records, batches.head(attempt=1 + len(list(records.glob("*")))))) as log:
        batches.record(log)
        for images, labels in DataLoader(batches, batch_size=None):
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": batches.state_dict()}, saved)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stop", type=int, default=STEPS)
    asked = parser.parse_args()
    torch.set_num_threads(1)  # such images are done before other threads have begun
    for loss in train(asked.folder, asked.stop):
        print(f"{loss:.4f}")


if __name__ == "__main__":
    main()
