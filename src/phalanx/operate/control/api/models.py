"""The registry: model versions with their lineage."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from phalanx.core.errors import NotFound
from phalanx.core.views import ModelView
from phalanx.operate.control import views
from phalanx.operate.control.api.access import ServicesHere
from phalanx.operate.control.api.pages import LINK, Key, Page, Pages
from phalanx.operate.control.api.services import Services
from phalanx.operate.control.world import ModelRecord

router = APIRouter(tags=["models"])
PageHere = Annotated[Page, Depends(Pages("models", str, int, limit=None))]
Name = Annotated[str, Path(max_length=100)]


@router.get("/models", responses=LINK)
async def list_models(services: ServicesHere, page: PageHere) -> tuple[ModelView, ...]:
    """Every version of every model, by name."""
    known = (one for versions in services.control.world.models.values() for one in versions)
    return tuple(views.model_view(one) for one in page.of(known, _key))


@router.get("/models/{name}", responses=LINK)
async def model_versions(services: ServicesHere, name: Name, page: PageHere) -> tuple[ModelView, ...]:
    """Every version of one model."""
    return tuple(views.model_view(one) for one in page.of(_versions(services, name), _key))


@router.get("/models/{name}/{version}")
async def model(services: ServicesHere, name: Name, version: Annotated[int, Path(ge=0, le=2**31)]) -> ModelView:
    """One version."""
    versions = _versions(services, name)
    found = next((one for one in versions if one.version == version), None)
    if found is None:
        raise NotFound("version", version, f"{name} has the versions 1 to {versions[-1].version}")
    return views.model_view(found)


def _key(one: ModelRecord) -> Key:
    return one.name, one.version


def _versions(services: Services, name: str) -> tuple[ModelRecord, ...]:
    versions = services.control.world.models.get(name)
    if not versions:
        raise NotFound("model", name, "no such model; list them with `phalanx model ls`")
    return versions
