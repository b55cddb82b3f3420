"""Where an optimiser keeps its moments, other than beside the weights: in host memory, or in a file on a disk of the node."""

from phalanx.job.train.offload.place import OffloadPlace, offload_place
from phalanx.job.train.offload.streamed import StreamedAdamW, streamed_adamw

__all__ = ["OffloadPlace", "StreamedAdamW", "offload_place", "streamed_adamw"]
