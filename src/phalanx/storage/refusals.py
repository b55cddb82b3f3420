"""What a store said, as one of our errors: whose it is to mend, and whether the same call may be made again."""

import errno
import os
import re
from typing import Final

from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from phalanx.core.errors import NotFound, PhalanxError, SetupError, StoreUnavailable
from phalanx.storage.atomic import refused
from phalanx.storage.places import Place

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z.]{1,60})</Code>|\"(?:code|reason)\":\s*\"([A-Za-z.]{1,60})\"")
_OS_ERROR: Final = re.compile(r"\(os error (\d+)\)")
_QUERY: Final = re.compile(r"\?[^\s:|]+")
_TIMING: Final = re.compile(r" in [0-9.]+[a-zµ]*s(?:, after [0-9]+ retries, max_retries: [0-9]+, retry_timeout: \S+)?\s+- ")
_UNSENT: Final = "error sending request"
_CAUSE: Final = re.compile(r"kind: \w+,\s+message: \"([^\"\n]{1,100})\"|\"dns error\",[^\"]*error: \"([^\"\n]{1,100})\"")
_DAMAGED: Final = ("BadDigest", "InvalidDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "Md5Mismatch")
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_METADATA: Final = ("169.254.169.254", "fd00:ec2::254", "metadata.google.internal", "/oauth2/token", "token request")
_AGAIN: Final = (408, 409, 425, 429)
_MINE: Final[dict[str, str]] = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_NEEDS: Final = "it needs the rights to read, write, list and delete"


def told(place: Place, key: str, error: Exception, opening: bool = False) -> PhalanxError:
    """The error to raise for `error`, which came of `key` at `place`; `opening` while the store is first looked at."""
    text = str(error)
    if place.scheme == "file":
        return _of_disk(place, key, error, text)
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    number = _STATUS.search(text)
    status = int(number[1]) if number else 0
    if any(word in text for word in _NO_BUCKET):
        kind = "container" if place.scheme == "az" else "bucket"
        return SetupError("store", place.url, f"there is no {kind} {place.bucket!r}; make it, or name another")
    if isinstance(error, FileNotFoundError):
        return missing(place, key)
    if code in _DAMAGED:
        return StoreUnavailable(f"{place.url}: {key!r} arrived damaged and was refused ({code}); try again")
    if any(word in text for word in _METADATA):
        return _without_credentials(place, text, opening or 400 <= status < 500)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
        why = f" ({code})" if code else ""
        return SetupError("store", place.url, f"refuses these credentials{why}; check {_MINE.get(place.scheme, 'them')}; {_NEEDS}")
    if status in (301, 307, 308):
        return SetupError("store", place.url, "lies in another region; set AWS_REGION to the bucket's")
    if 400 <= status < 500 and status not in _AGAIN:
        return SetupError("store", place.url, f"refuses the request ({status} {code}); check bucket, region and endpoint")
    return StoreUnavailable(f"{place.url}: {first_line(error)}; try again")


def missing(place: Place, key: str) -> NotFound:
    """Of an object that is not there."""
    return NotFound("object", key, f"{place.url} has no such object")


def first_line(error: Exception) -> str:
    """What happened, for people, without a query that may hold a signature. Why nothing was sent stands further down."""
    line, _, source = str(error).partition("\n")
    line = _TIMING.sub(": ", _QUERY.sub("", line))[:500]
    why = _CAUSE.search(source) if line.endswith(_UNSENT) else None
    return f"{line.removesuffix(_UNSENT)}{(why[1] or why[2]).lower()}" if why else line


def _of_disk(place: Place, key: str, error: Exception, text: str) -> PhalanxError:
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (found := _OS_ERROR.search(text)):
        number = int(found[1])
    if number == errno.ENOENT or (number is None and isinstance(error, FileNotFoundError)):
        return missing(place, key) if place.path.is_dir() else _gone(place)
    if number is not None:
        return refused(place.path / key, OSError(number, os.strerror(number)))
    return StoreUnavailable(f"{place.url}: {first_line(error)}; nothing was changed, try again")


def _gone(place: Place) -> StoreUnavailable:
    return StoreUnavailable(f"{place.url}: the folder is gone; put it back, or mount its disk, and try again")


def _without_credentials(place: Place, text: str, surely: bool) -> PhalanxError:
    """Nobody gave any, so the machine's own were asked for. Where they exist, their service may be away for a moment."""
    if surely:
        return SetupError("store", place.url, f"no credentials were found; set {_MINE.get(place.scheme, 'them')}")
    return StoreUnavailable(f"{place.url}: the machine's credentials could not be fetched; try again")
