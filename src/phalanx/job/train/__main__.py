"""`python -m phalanx.job.train RECIPE`: one rank of a training job, started with torchrun's environment or alone."""

import logging
import os
import sys
import time

from phalanx.core.errors import PhalanxError, SpecError
from phalanx.core.imports import long_imports
from phalanx.core.recipe import RECIPES, AnyRecipe, LlamaRecipe

with long_imports():  # torch's
    from phalanx.job.sdk import Session, attach
    from phalanx.job.sdk.gang import Gang
    from phalanx.job.sdk.gang import attach as attach_gang
    from phalanx.job.train.device import gang
    from phalanx.job.train.feed import RunData
    from phalanx.job.train.finish import finish
    from phalanx.job.train.loop import run
    from phalanx.job.train.opened import decoding_threads, opened_images, opened_tokens
    from phalanx.job.train.recipe import recipe_of
    from phalanx.job.train.recover import Recipe
    from phalanx.job.train.saves import saving
    from phalanx.job.train.setup import set_up
    from phalanx.job.train.traces.traced import finish_traces
    from phalanx.job.train.warm import warm_up


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
        train_in_generations(coordinated, arguments[0])
        return
    session = attach()
    recipe = recipe_of(arguments[0], session.hyperparameters)
    data = _data(session, recipe)
    log = logging.getLogger(__name__)
    try:
        with gang() as rank:
            training, start = set_up(session, recipe, data, rank, time.monotonic, lambda: time.time_ns() // 1_000_000)
            with saving(training) as saves:
                trained = run(training, start, saves)
            folder = finish(training, trained)
        finish_traces(training)  # the group is left: nobody waits for this rank
        log.info("model saved in %s; %d saves failed", folder, trained.failed_saves)
    finally:
        if session.lost_records:
            log.warning("%d records were lost: the record file could not be written", session.lost_records)


def train_in_generations(coordinated: Gang, name: str) -> None:
    """The same in a gang that recovers inside, as one of its ranks or as a spare."""
    session = attach()
    recipe = recipe_of(name, session.hyperparameters)
    run_of_recipe = Recipe(coordinated, recipe, _data(session, recipe), attach)
    log = logging.getLogger(__name__)
    warm_up()  # ranks too: what torch loads late would else look like a hang in the first step of a busy machine
    try:
        folder, trained = run_of_recipe.train()
        log.info("model saved in %s; %d saves failed", folder, trained.failed_saves)
    finally:
        if run_of_recipe.lost_records:
            log.warning("%d records were lost: the record file could not be written", run_of_recipe.lost_records)


def _data(session: Session, recipe: AnyRecipe) -> RunData:
    if session.data_source is None:
        made = "phalanx data prepare" if isinstance(recipe, LlamaRecipe) else "phalanx data pack"
        raise SpecError("data", session.data, f"a recipe needs data: {{path: DIR}} made by `{made}`")
    if isinstance(recipe, LlamaRecipe):
        return opened_tokens(session.data_source, recipe)
    return opened_images(session.data_source, recipe, decoding_threads(recipe, os.environ))


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Everything that matters is on disk. The interpreter's teardown beside torch's threads aborted a finished rank now and then
    # ("terminate called without an active exception", exit by signal 6), which would count as a failed attempt.
    os._exit(code)
