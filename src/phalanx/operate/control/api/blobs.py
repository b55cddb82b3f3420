"""Packed workdirs and other blobs, by the SHA-256 of their bytes."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from phalanx.core.errors import NotFound, SetupError, StoreUnavailable
from phalanx.operate.control.api.access import ServicesHere
from phalanx.operate.control.api.artifacts import may_store
from phalanx.operate.control.api.openapi import BYTES, RAW_BODY
from phalanx.operate.control.api.scratch import received, sent
from phalanx.operate.control.api.tags import NotModified, names
from phalanx.operate.control.blob_threads import on_blob_thread, on_large_blob_thread

router = APIRouter(tags=["blobs"])
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.head("/blobs/{sha256}", response_class=Response, responses={200: {"description": "It is there"}})
async def has_blob(services: ServicesHere, sha256: Sha256) -> Response:
    """Whether the blob is there: 200 or 404."""
    with _not_the_askers():
        found = await on_blob_thread(services.blobs.has, sha256)
    if not found:
        raise NotFound("blob", sha256, "send it with PUT first")
    return Response()


@router.get("/blobs/{sha256}", response_class=Response, responses=BYTES)
async def get_blob(services: ServicesHere, request: Request, sha256: Sha256) -> Response:
    """Its bytes, which are the same for ever: its name is its tag."""
    tag = f'"{sha256}"'
    if names(request.headers.get("if-none-match", ""), tag) and await on_blob_thread(services.blobs.has, sha256):
        raise NotModified(tag)
    with _not_the_askers():
        answer = await sent(lambda file: on_blob_thread(services.blobs.copy, sha256, file), services.home / "run")
    answer.headers["ETag"] = tag
    return answer


@router.put("/blobs/{sha256}", status_code=204, dependencies=[Depends(may_store)], openapi_extra=RAW_BODY)
async def put_blob(services: ServicesHere, sha256: Sha256, request: Request) -> Response:
    """Stores the raw body, at most 256 MiB, when its hash is the name."""
    async with received(request, services.home / "run") as data:
        put = on_blob_thread if isinstance(data, bytes) else on_large_blob_thread
        with _not_the_askers():
            await put(services.blobs.put_checked, sha256, data)
    return Response(status_code=204)


@contextlib.contextmanager
def _not_the_askers() -> Iterator[None]:
    """Bad credentials or a disk without rights are for the platform's admin to mend: who asks here may ask again, and an agent
    that was told otherwise would give its artifacts up."""
    try:
        yield
    except SetupError as error:
        raise StoreUnavailable(str(error)) from error
