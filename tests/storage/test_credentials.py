"""The right to a store is told apart from the rest of an environment, so that it need not lie in a file."""

import pytest

from phalanx.storage.credentials import parted

PLAIN = {
    "PATH": "/bin",
    "AWS_REGION": "eu",
    "AWS_PROFILE": "p",
    "AZURE_STORAGE_ACCOUNT_NAME": "a",
    "API_TOKEN": "t",
    "MY_AWS_KEY": "k",
}


@pytest.mark.parametrize(
    "name",
    [
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN",
        "AWS_SSE_CUSTOMER_KEY_BASE64", "aws_secret_access_key",
        "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY", "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_SAS_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CLIENT_SECRET", "AZURE_CLIENT_SECRET",
        "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS",
    ],
)  # fmt: skip
def test_the_right_to_a_store_is_told_apart_and_nothing_is_lost(name: str) -> None:
    environ = {**PLAIN, name: "hunter2"}
    assert parted(environ) == (PLAIN, {name: "hunter2"})


def test_an_empty_one_and_one_that_is_no_text_stay_where_they_are() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "\udcff"}
    assert parted(environ) == (environ, {})
