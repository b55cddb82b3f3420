"""The registry: model versions with their lineage."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from phalanx.core.errors import NotFound
from phalanx.core.views import ModelView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import READS, ServicesHere, sees
from phalanx.operate.control.api.asker import Asker, AskerHere
from phalanx.operate.control.api.pages import LINK, Key, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.world import ModelRecord

router = APIRouter(tags=["models"])
PageHere = Annotated[Page, Depends(Pages("models", str, int, limit=None))]
Name = Annotated[str, Path(max_length=100)]


@router.get("/models", dependencies=[READS], responses=LINK)
async def list_models(services: ServicesHere, asker: AskerHere, page: PageHere) -> tuple[ModelView, ...]:
    """Every version of every model, of jobs that the caller may see, by name."""
    world = services.control.world
    known = (one for versions in world.models.values() for one in versions if sees(asker, world.jobs[one.job]))
    return tuple(views.model_view(one) for one in page.of(known, _key))


@router.get("/models/{name}", dependencies=[READS], responses=LINK)
async def model_versions(services: ServicesHere, asker: AskerHere, name: Name, page: PageHere) -> tuple[ModelView, ...]:
    """Every version of one model."""
    return tuple(views.model_view(one) for one in page.of(_versions(services, asker, name), _key))


@router.get("/models/{name}/{version}", dependencies=[READS])
async def model(services: ServicesHere, asker: AskerHere, name: Name, version: Annotated[int, Path(ge=0, le=2**31)]) -> ModelView:
    """One version."""
    versions = _versions(services, asker, name)
    found = next((one for one in versions if one.version == version), None)
    if found is None:
        raise NotFound("version", version, f"{name} has the versions 1 to {versions[-1].version}")
    return views.model_view(found)


def _key(one: ModelRecord) -> Key:
    return one.name, one.version


def _versions(services: Services, asker: Asker, name: str) -> tuple[ModelRecord, ...]:
    world = services.control.world
    versions = tuple(one for one in world.models.get(name, ()) if sees(asker, world.jobs[one.job]))
    if not versions:
        raise NotFound("model", name, "no such model; list them with `phalanx model ls`")
    return versions
