"""What stores say, as errors of ours. The texts are obstore's, as real services and this machine's produced them."""

import errno
from pathlib import Path

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from phalanx.core.errors import NotFound, PhalanxError, SetupError, StoreUnavailable
from phalanx.storage.places import Place
from phalanx.storage.refusals import first_line, told

S3, GS, AZ = Place("s3", bucket="bkt"), Place("gs", bucket="bkt"), Place("az", bucket="box", account="acc")
ANSWER = "Error performing GET http://h/b in 1.2ms - Server returned non-2xx status code: "


def xml(status: str, code: str) -> str:
    return f"Generic S3 error: {ANSWER}{status}: <Error><Code>{code}</Code></Error>\n\nDebug source:\nGeneric"


@pytest.mark.parametrize(
    ("place", "error", "kind", "says"),
    [
        (S3, GenericError(xml("403 Forbidden", "ExpiredToken")), SetupError, r"credentials \(ExpiredToken\).*AWS_PROFILE"),
        (S3, PermissionDeniedError(f"{ANSWER}403 Forbidden: "), SetupError, "read, write, list and delete"),
        (S3, GenericError(xml("301 Moved Permanently", "PermanentRedirect")), SetupError, "set AWS_REGION"),
        (S3, GenericError(xml("400 Bad Request", "InvalidBucketName")), SetupError, "400 InvalidBucketName"),
        (S3, GenericError(xml("400 Bad Request", "BadDigest")), StoreUnavailable, "arrived damaged"),
        (S3, GenericError(xml("404 Not Found", "NoSuchBucket")), SetupError, "no bucket 'bkt'"),
        (S3, GenericError(xml("503 Service Unavailable", "SlowDown")), StoreUnavailable, "try again"),
        (S3, GenericError(xml("429 Too Many Requests", "TooManyRequests")), StoreUnavailable, "try again"),
        (S3, GenericError(xml("409 Conflict", "OperationAborted")), StoreUnavailable, "try again"),
        (S3, GenericError(xml("500 Internal Server Error", "InternalError")), StoreUnavailable, "try again"),
        (S3, FileNotFoundError("Object at location k not found"), NotFound, "no such object"),
        (AZ, FileNotFoundError(f"{ANSWER}404: <Error><Code>ContainerNotFound</Code></Error>"), SetupError, "no container 'box'"),
        (GS, FileNotFoundError(f"{ANSWER}404: The specified bucket does not exist"), SetupError, "no bucket 'bkt'"),
        (GS, GenericError(f"{ANSWER}401 Unauthorized: x"), SetupError, "GOOGLE_APPLICATION_CREDENTIALS"),
        (AZ, GenericError(f"{ANSWER}403 Forbidden: x"), SetupError, "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_whose_it_is_to_mend(place: Place, error: Exception, kind: type[PhalanxError], says: str) -> None:
    with pytest.raises(kind, match=says):
        raise told(place, "k", error)


SOURCE = """Generic {
    source: hyper_util::client::legacy::Error(Connect, ConnectError("%s",
        %s
"""


@pytest.mark.parametrize(
    ("what", "cause", "said"),
    [
        (
            "tcp connect error",
            'Os {\n  code: 111,\n  kind: ConnectionRefused,\n  message: "Connection refused",',
            "connection refused",
        ),
        ("dns error", 'Custom {\n  kind: Uncategorized,\n  error: "failed to lookup address: x",', "failed to lookup address: x"),
        ("another error", "Unknown", "error sending request"),
    ],
)
def test_why_nothing_was_sent_is_said(what: str, cause: str, said: str) -> None:
    error = GenericError(f"GET http://h/b in 4.9ms - HTTP error: error sending request\n\nDebug source:\n{SOURCE % (what, cause)}")
    assert first_line(error) == f"GET http://h/b: HTTP error: {said}"


IMDS = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token"


def test_no_credentials_is_the_users_when_the_store_is_chosen_and_may_pass_later() -> None:
    """Where a machine has an identity, its service may be away for a moment: a job must not fail for that."""
    away = GenericError(f"{IMDS} in 1s, after 3 retries, max_retries: 3, retry_timeout: 1s  - HTTP error: connection refused")
    with pytest.raises(SetupError, match="no credentials were found; set AWS_ACCESS_KEY_ID"):
        raise told(S3, "", away, opening=True)
    with pytest.raises(StoreUnavailable, match="could not be fetched"):
        raise told(S3, "", away)
    refused = GenericError(f"{IMDS} in 1ms - Server returned non-2xx status code: 404 Not Found: ")
    with pytest.raises(SetupError, match="no credentials were found"):
        raise told(S3, "", refused)


def test_a_signature_in_a_url_is_not_repeated() -> None:
    text = "Error performing GET https://acc.blob.core.windows.net/c/k?sv=1&sig=hunter2 in 3ms - HTTP error: timed out\nsig=hunter2"
    assert "hunter2" not in first_line(GenericError(text))
    assert "hunter2" not in str(told(AZ, "k", GenericError(text)))
    assert first_line(GenericError(text)).endswith("/c/k: HTTP error: timed out")


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.ENOSPC, StoreUnavailable, "nothing was changed, free space"),
        (errno.EDQUOT, StoreUnavailable, "nothing was changed, free space"),
        (errno.EIO, StoreUnavailable, "nothing was changed"),
        (errno.EROFS, SetupError, "read-only file system"),
        (errno.EACCES, SetupError, "not writable for this user"),
    ],
)
def test_what_a_disk_says_however_it_is_told(number: int, kind: type[PhalanxError], says: str, tmp_path: Path) -> None:
    place = Place("file", path=tmp_path)
    for error in (OSError(number, "x"), GenericError(f"Generic LocalFileSystem error: Unable to open file: x (os error {number})")):
        with pytest.raises(kind, match=says):
            raise told(place, "k", error)
