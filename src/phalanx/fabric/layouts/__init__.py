"""How a model and its samples are laid over the ranks of a gang: axes, what cannot work and why, and which rank is where."""

from phalanx.fabric.layouts.experts import side_to_cut
from phalanx.fabric.layouts.layout import AXES, Axis, Layout, laid_out
from phalanx.fabric.layouts.problems import ModelFacts, Problem, RankFacts, facts_of, named, problems, recipe_problems
from phalanx.fabric.layouts.reach import Reach, reach
from phalanx.fabric.layouts.stages import parted_problems, pipeline_of

__all__ = [
    "AXES",
    "Axis",
    "Layout",
    "ModelFacts",
    "Problem",
    "RankFacts",
    "Reach",
    "recipe_problems",
    "facts_of",
    "laid_out",
    "named",
    "parted_problems",
    "pipeline_of",
    "problems",
    "reach",
    "side_to_cut",
]
