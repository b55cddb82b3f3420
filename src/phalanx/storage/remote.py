"""Clients of stores on the network: how long they wait, where their credentials come from, and what must not go readable."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from phalanx.core.errors import SetupError
from phalanx.storage.aws_profile import profile_of
from phalanx.storage.places import Place

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_UNSENT: Final = "connection was not ready"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a remote store may take. One request has `request_s`; a refused one is tried again, with growing pauses, while
    `retries_s` last: so a call of one request ends after `request_s + retries_s` at the latest."""

    connect_s: float = 5.0
    request_s: float = 120.0
    retries_s: float = 30.0
    retries_max: int = 8


def remote_store(place: Place, environ: Mapping[str, str], patience: Patience) -> Any:
    """obstore's client. Raises SetupError, and what obstore raises for settings that it refuses."""
    client: Any = _client(patience, environ)
    retry = {
        "max_retries": patience.retries_max,
        "retry_timeout": timedelta(seconds=patience.retries_s),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    both: Any = {"prefix": place.prefix or None, "retry_config": retry}
    if place.scheme == "gs":
        return GCSStore(place.bucket, client_options=client, **both)
    if place.scheme == "az":
        account: Any = {"account_name": place.account} if place.account else {}
        return AzureStore(place.bucket, client_options=client, **account, **both)
    profile = profile_of(environ, Path(environ.get("HOME") or "~").expanduser())
    options: Any = {**_s3_from(environ), **profile.options}
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or options.get("endpoint", "")
    if endpoint.startswith("http://"):
        client["allow_http"] = _may_be_plain(endpoint, environ)
    if "checksum_algorithm" not in options:
        options["checksum_algorithm"] = "sha256"  # the store refuses bytes that changed on the way
    return S3Store(place.bucket, client_options=client, credential_provider=profile.provider, **options, **both)


def _s3_from(environ: Mapping[str, str]) -> dict[str, str]:
    """What obstore reads from the process's environment, from the given one."""
    names = {
        "AWS_ACCESS_KEY_ID": "access_key_id", "AWS_SECRET_ACCESS_KEY": "secret_access_key", "AWS_SESSION_TOKEN": "session_token",
        "AWS_REGION": "region", "AWS_DEFAULT_REGION": "region", "AWS_ENDPOINT_URL": "endpoint", "AWS_ENDPOINT_URL_S3": "endpoint",
        "AWS_CHECKSUM_ALGORITHM": "checksum_algorithm",
    }  # fmt: skip
    return {option: environ[name] for name, option in reversed(names.items()) if environ.get(name)}


def _may_be_plain(endpoint: str, environ: Mapping[str, str]) -> bool:
    host = urlsplit(endpoint).hostname
    if host in _LOOPBACK or environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):
        return True
    raise SetupError("AWS_ENDPOINT_URL", f"http://{host}", "would send data readable; use https, or set AWS_ALLOW_HTTP=true")


def _client(patience: Patience, environ: Mapping[str, str]) -> dict[str, Any]:
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=patience.connect_s),
        "timeout": timedelta(seconds=patience.request_s),
    }
    if bundle := environ.get("AWS_CA_BUNDLE"):
        try:
            client["root_certificate"] = Path(bundle).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SetupError("AWS_CA_BUNDLE", bundle, "cannot be read as PEM; name a readable file, or unset it") from error
    return client


def said_again_if_unsent(call: Callable[[], object]) -> object:
    """Once: obstore repeats what broke on the way, and not what its HTTP library gave up unsent, as it does when the pooled
    connection that it chose breaks in that moment. Nothing of that request has reached the store."""
    try:
        return call()
    except BaseError as error:
        if _UNSENT not in str(error):
            raise
        return call()
