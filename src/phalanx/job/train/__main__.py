"""`python -m phalanx.job.train RECIPE`: one rank of a training job, started with torchrun's environment or alone."""

import logging
import os
import sys
import time
from typing import Final

from phalanx.core.errors import PhalanxError, SpecError
from phalanx.core.imports import long_imports
from phalanx.core.recipe import RECIPES, LlamaRecipe

with long_imports():  # torch's
    from phalanx.job.data.open import TokenData
    from phalanx.job.data.sources import Sources, open_sources
    from phalanx.job.sdk import Session, attach
    from phalanx.job.sdk.gang import Gang
    from phalanx.job.sdk.gang import attach as attach_gang
    from phalanx.job.train.device import gang
    from phalanx.job.train.finish import finish
    from phalanx.job.train.initial import check_init
    from phalanx.job.train.loop import run
    from phalanx.job.train.recipe import llama_recipe
    from phalanx.job.train.recover import Recipe
    from phalanx.job.train.saves import saving
    from phalanx.job.train.setup import set_up
    from phalanx.job.train.warm import warm_up

_CHECKED_FIRST_BYTES_MAX: Final = 256 * 2**20
"""Data up to this size is read whole before the first step, in 0.2 s, so that damage shows before anything is trained. Of more,
each block is checked when it is first read."""


def main(arguments: list[str]) -> int:
    """The rank's exit code. Errors that somebody can act on are one line on stderr."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        train(arguments)
    except PhalanxError as error:
        sys.stderr.write(f"Error: {error.sentence()}\n")
        return int(error.exit_code)
    return 0


def train(arguments: list[str]) -> None:
    """Reads the session, joins the gang, trains, saves the model."""
    if arguments not in [[name] for name in RECIPES]:
        raise SpecError("recipe", " ".join(arguments), f"write one of {', '.join(RECIPES)}")
    coordinated = attach_gang()
    if coordinated is not None:
        train_in_generations(coordinated)
        return
    session = attach()
    recipe = llama_recipe(session.hyperparameters)
    data = _data(session, recipe)
    log = logging.getLogger(__name__)
    try:
        with gang() as rank:
            training, start = set_up(session, recipe, data, rank, time.monotonic, lambda: time.time_ns() // 1_000_000)
            with saving(training) as saves:
                trained = run(training, start, saves)
            folder = finish(training, trained)
        log.info("model saved in %s; %d saves failed", folder, trained.failed_saves)
    finally:
        if session.lost_records:
            log.warning("%d records were lost: the record file could not be written", session.lost_records)


def train_in_generations(coordinated: Gang) -> None:
    """The same in a gang that recovers inside, as one of its ranks or as a spare."""
    session = attach()
    recipe = llama_recipe(session.hyperparameters)
    run_of_recipe = Recipe(coordinated, recipe, _data(session, recipe), attach)
    log = logging.getLogger(__name__)
    warm_up()  # ranks too: what torch loads late would else look like a hang in the first step of a busy machine
    try:
        folder, trained = run_of_recipe.train()
        log.info("model saved in %s; %d saves failed", folder, trained.failed_saves)
    finally:
        if run_of_recipe.lost_records:
            log.warning("%d records were lost: the record file could not be written", run_of_recipe.lost_records)


def _data(session: Session, recipe: LlamaRecipe) -> Sources:
    if session.data_source is None:
        raise SpecError("data", session.data, "a recipe needs data: {path: DIR} made by `phalanx data prepare`")
    sources = open_sources(session.data_source)
    check_init(recipe, sources)
    for data in checked_first(sources):
        data.verify()
    sources.prepare(recipe.sequence)
    return sources


def checked_first(sources: Sources) -> list[TokenData]:
    """What is read whole before the first step. Of a store nothing: each rank would read all of it past the node's cache."""
    near = [data for data in sources.opened.values() if data.far("train") is None]
    size = sum(entry.size_bytes for data in near for entry in data.manifest.files)
    stops = sources.asked.on_bad_data == "stop"  # else damage is set aside where it is met
    return near if stops and size <= _CHECKED_FIRST_BYTES_MAX else []


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything that matters is on disk. The interpreter's teardown beside torch's threads aborted a finished rank now and then
    # ("terminate called without an active exception", exit by signal 6), which would count as a failed attempt.
    os._exit(code)
