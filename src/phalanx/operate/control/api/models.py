"""The registry: model versions with their lineage."""

from typing import Annotated

from fastapi import APIRouter, Path

from phalanx.core.errors import NotFound
from phalanx.core.views import ModelView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import READS, ServicesHere, sees
from phalanx.operate.control.api.asker import Asker, AskerHere
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.world import ModelRecord

router = APIRouter(tags=["models"])
Name = Annotated[str, Path(max_length=100)]


@router.get("/models", dependencies=[READS])
async def list_models(services: ServicesHere, asker: AskerHere) -> tuple[ModelView, ...]:
    """Every version of every model, of jobs that the caller may see."""
    world = services.control.world
    known = (one for versions in world.models.values() for one in versions)
    return tuple(views.model_view(one) for one in known if sees(asker, world.jobs[one.job]))


@router.get("/models/{name}", dependencies=[READS])
async def model_versions(services: ServicesHere, asker: AskerHere, name: Name) -> tuple[ModelView, ...]:
    """Every version of one model."""
    return tuple(views.model_view(one) for one in _versions(services, asker, name))


@router.get("/models/{name}/{version}", dependencies=[READS])
async def model(services: ServicesHere, asker: AskerHere, name: Name, version: int) -> ModelView:
    """One version."""
    versions = _versions(services, asker, name)
    found = next((one for one in versions if one.version == version), None)
    if found is None:
        raise NotFound("version", version, f"{name} has the versions 1 to {versions[-1].version}")
    return views.model_view(found)


def _versions(services: Services, asker: Asker, name: str) -> tuple[ModelRecord, ...]:
    world = services.control.world
    versions = tuple(one for one in world.models.get(name, ()) if sees(asker, world.jobs[one.job]))
    if not versions:
        raise NotFound("model", name, "no such model; list them with `phalanx model ls`")
    return versions
