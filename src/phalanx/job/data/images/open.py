"""The images that a run reads: one data set of samples, of which the last ones are held out.

Where `Sources` counts samples, this counts samples of epochs: sample s in epoch e has the number e x samples + s, since what is
made of it in training depends on both, and on nothing else but the seed.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from phalanx.core import wire
from phalanx.core.errors import DataError, SetupError
from phalanx.core.training_data import ONE, DataSource
from phalanx.job.data.asked import check_asked, order_of
from phalanx.job.data.bad_block import BadBlock, Block
from phalanx.job.data.draws import DataOrder, Draws
from phalanx.job.data.enough import check_images
from phalanx.job.data.images import boxes
from phalanx.job.data.images.decode import Pixels, decoded, label_of
from phalanx.job.data.images.needs import check_fields, num_classes
from phalanx.job.data.images.rows import contents, fill, words_of
from phalanx.job.data.manifest import Split
from phalanx.job.data.order import Indices
from phalanx.job.data.quarantine import Touching
from phalanx.job.data.samples import Rows
from phalanx.job.data.shards import Watch
from phalanx.job.data.sources import cache_of, named
from phalanx.job.data.tars.open import Sample, SampleData, all_of, open_samples
from phalanx.job.data.tars.stream import generator_of, samples_ahead

if TYPE_CHECKING:
    from phalanx.job.data.read_ahead import ReadAhead


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is made of an image. side: pixels of the square that it becomes. area_min: least share of a training image's area
    that is cut out. flip: how often one is mirrored. seed: of what is drawn."""

    side: int
    area_min: float
    flip: float
    seed: int


class ImageData:
    """From `open_images`. Any thread may gather. classes: that a model of it tells apart. held_out: samples at the end that are not
    trained on. threads: that decode."""

    def __init__(self, asked: DataSource, data: SampleData, look: Look, classes: int, held_out: int, threads: int) -> None:
        self.asked, self.samples, self.look, self.classes = asked, data, look, classes
        self._train = len(data) - held_out
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="images")

    @property
    def manifests(self) -> dict[str, str]:
        return {ONE: self.samples.manifest_hash}

    @property
    def manifest_hash(self) -> str:
        return self.samples.manifest_hash

    @property
    def agreed(self) -> str:
        """What ranks have to have alike."""
        return self.manifest_hash if self.asked.is_plain else f"{self.manifest_hash} {wire.dumps(DataSource, self.asked)}"

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """By number; none where the data does not say them."""
        return self.samples.classes

    def num_samples(self, split: Split, sequence: int) -> int:
        return self._train if split == "train" else len(self.samples) - self._train

    def check_held_out(self, sequence: int, batch: int) -> None:
        """Raises DataError where there is not one held-out batch of `batch` samples."""
        check_images(len(self.samples), len(self.samples) - self._train, batch)

    def order(self, sequence: int, *, seed: int, global_batch: int) -> DataOrder:
        """Of the run over what is trained on."""
        return order_of(self.asked, {ONE: self._train}, {ONE: ""}, seed=seed, global_batch=global_batch)

    def numbers(self, draws: Draws, split: Split, sequence: int) -> Indices:
        numbers: Indices = draws.epoch * len(self.samples) + draws.sample
        return numbers

    def drawn(self, numbers: Indices, split: Split, sequence: int) -> tuple[Indices, Indices]:
        """Source and sample of each."""
        return np.zeros_like(numbers), numbers % len(self.samples)

    def touching(self, block: Block, split: Split, sequence: int) -> Touching:
        """The stretches of training samples that need a block."""
        found = [(first, min(stop, self._train)) for first, stop in self.samples.touching(block) if first < self._train]
        return {ONE: found if split == "train" else []}

    def row_shape(self, sequence: int) -> tuple[int, ...]:
        return (words_of(self.look.side),)

    def contents(self, rows: Rows) -> NDArray[np.uint64]:
        """XXH3 of each sample, as it came."""
        return contents(rows)

    def gather(self, split: Split, numbers: Indices, sequence: int, out: Rows | None = None, watch: Watch | None = None) -> Rows:
        """Rows as `rows` has them, in the order asked. Raises BadBlock for damage, or else for what is no image, of all that is in
        the batch, and DataError for what is of no class."""
        rows = np.empty((len(numbers), *self.row_shape(sequence)), dtype=np.int64) if out is None else out
        epochs, samples = self._placed(split, numbers)
        read = list(self.samples.read_all(samples.tolist(), None, watch))
        make = partial(self._make, split, rows)
        if bad := [one for one in self._threads.map(make, range(len(read)), read, epochs.tolist()) if one is not None]:
            raise all_of(bad)
        return rows

    def read_ahead(
        self, split: Split, sequence: int, order: Callable[[int], Indices], start: int, stop: int | None
    ) -> "ReadAhead | None":
        """What fetches the steps to come of data in a store; None of a folder."""

        def rows(step: int) -> Draws:
            epochs, samples = self._placed(split, order(step))
            return Draws(np.zeros_like(samples), epochs, samples)

        return samples_ahead([self.samples], None, rows, start, stop)

    def _placed(self, split: Split, numbers: Indices) -> tuple[Indices, Indices]:
        """Epoch and sample of each."""
        epochs, samples = np.divmod(numbers, np.int64(len(self.samples)))
        return epochs, samples if split == "train" else samples + self._train

    def _make(self, split: Split, rows: Rows, at: int, sample: Sample, epoch: int) -> BadBlock | None:
        """What is wrong with the image: its bytes are those that were indexed, and every rank meets the same."""
        label = label_of(sample, self.classes)
        try:
            fill(rows[at], label, sample.content, self._seen(split, sample, epoch))
        except DataError as error:
            return BadBlock(error.field, error.value, error.fix, self.samples.block_of(sample.number))
        return None

    def _seen(self, split: Split, sample: Sample, epoch: int) -> Pixels:
        look = self.look
        if split != "train":
            return decoded(sample, look.side, boxes.middle)
        random = generator_of(look.seed, epoch, sample.number)
        mirrored = random.random() < look.flip
        pixels = decoded(sample, look.side, lambda width, height: boxes.drawn(width, height, look.area_min, random))
        return pixels[:, :, ::-1] if mirrored else pixels


def open_images(asked: DataSource, look: Look, classes: int, held_out: int, threads: int) -> ImageData:
    """classes: that a recipe asks for; 0 for as many as the data names. Raises DataError where the data cannot be read, lacks
    images or classes, or is all held out, SpecError as `num_classes` does."""
    check_asked(asked)
    if find_spec("PIL") is None:
        raise SetupError("pillow", "(missing)", "images are decoded by it: install phalanx[train]")
    with named(asked, ONE):
        data = open_samples(asked.path, cache=cache_of(asked))
    check_fields(asked, data.manifest)
    told_apart = num_classes(classes, len(data.classes))
    check_images(len(data), held_out, 0)
    return ImageData(asked, data, look, told_apart, held_out, threads)
