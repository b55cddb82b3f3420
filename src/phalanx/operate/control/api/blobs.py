"""Packed workdirs and other blobs, by the SHA-256 of their bytes."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from phalanx.core.errors import NotFound
from phalanx.operate.control.api.access import ServicesHere, admin

router = APIRouter(tags=["blobs"])
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.head("/blobs/{sha256}")
async def has_blob(services: ServicesHere, sha256: Sha256) -> Response:
    """Whether the blob is there: 200 or 404."""
    if not services.blobs.has(sha256):
        raise NotFound("blob", sha256, "send it with PUT first")
    return Response()


@router.get("/blobs/{sha256}", response_class=Response)
async def get_blob(services: ServicesHere, sha256: Sha256) -> Response:
    """Its bytes."""
    data = await asyncio.to_thread(services.blobs.get, sha256)
    return Response(data, media_type="application/octet-stream")


@router.put("/blobs/{sha256}", status_code=204, dependencies=[Depends(admin)])
async def put_blob(services: ServicesHere, sha256: Sha256, request: Request) -> Response:
    """Stores the raw body, at most 256 MiB, when its hash is the name."""
    data = await request.body()
    await asyncio.to_thread(services.blobs.put_checked, sha256, data)
    return Response(status_code=204)
