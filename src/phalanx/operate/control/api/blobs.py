"""Packed workdirs and other blobs, by the SHA-256 of their bytes."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from phalanx.core.errors import NotFound, SetupError, StoreUnavailable
from phalanx.operate.control.api import blob_rights
from phalanx.operate.control.api.access import READS_OR_NODES, ServicesHere
from phalanx.operate.control.api.artifacts import may_store
from phalanx.operate.control.api.asker import AskerHere
from phalanx.operate.control.api.openapi import BYTES, RAW_BODY
from phalanx.operate.control.api.scratch import received, sent
from phalanx.operate.control.api.tags import VARY, NotModified, names
from phalanx.operate.control.blob_threads import on_blob_thread, on_large_blob_thread

router = APIRouter(tags=["blobs"])
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]


@router.head(
    "/blobs/{sha256}",
    response_class=Response,
    responses={200: {"description": "It is there"}},
    dependencies=[READS_OR_NODES],
)
async def has_blob(services: ServicesHere, asker: AskerHere, sha256: Sha256) -> Response:
    """Whether the blob is there: 200 or 404."""
    with _not_the_askers():
        found = await on_blob_thread(blob_rights.has, services, asker.known, sha256)
    if not found:
        raise NotFound("blob", sha256, "send it with PUT first")
    return Response()


@router.get("/blobs/{sha256}", response_class=Response, responses=BYTES, dependencies=[READS_OR_NODES])
async def get_blob(services: ServicesHere, asker: AskerHere, request: Request, sha256: Sha256) -> Response:
    """Its bytes, which are the same for ever: its name is its tag."""
    tag = f'"{sha256}"'
    with _not_the_askers():
        await on_blob_thread(blob_rights.refuse_others, services, asker.known, sha256)
        if names(request.headers.get("if-none-match", ""), tag) and await on_blob_thread(services.blobs.has, sha256):
            raise NotModified(tag)
        answer = await sent(lambda file: on_blob_thread(services.blobs.copy, sha256, file), services.home / "run")
    answer.headers.update({"ETag": tag, "Vary": VARY})
    return answer


@router.put("/blobs/{sha256}", status_code=204, dependencies=[READS_OR_NODES, Depends(may_store)], openapi_extra=RAW_BODY)
async def put_blob(services: ServicesHere, asker: AskerHere, sha256: Sha256, request: Request) -> Response:
    """Stores the raw body, at most 256 MiB, when its hash is the name."""
    async with received(request, services.home / "run") as data:
        put = on_blob_thread if isinstance(data, bytes) else on_large_blob_thread
        with _not_the_askers():
            await put(services.blobs.put_checked, sha256, data)
    person = asker.known
    if person is not None and person.everywhere is None:
        await services.control.call(lambda controller: blob_rights.note_sender(services, controller.epoch, person, sha256))
    return Response(status_code=204)


@contextlib.contextmanager
def _not_the_askers() -> Iterator[None]:
    """Bad credentials or a disk without rights are for the platform's admin to mend: who asks here may ask again, and an agent
    that was told otherwise would give its artifacts up."""
    try:
        yield
    except SetupError as error:
        raise StoreUnavailable(str(error)) from error
