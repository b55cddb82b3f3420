"""The model over one mesh with a named axis for each way in which ranks share the work; a gang of one is the same code."""

from phalanx.job.train.parallel.build import sharded_llama
from phalanx.job.train.parallel.data import let_go, sync_gradients
from phalanx.job.train.parallel.mesh import layout_of, make_mesh, placed

__all__ = ["layout_of", "let_go", "make_mesh", "placed", "sharded_llama", "sync_gradients"]
