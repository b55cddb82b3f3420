"""The server's end of logins by an OpenID provider: its configuration, its nonces, and how it fetches what the provider says."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx

from phalanx.core.errors import StoreUnavailable
from phalanx.core.oidc import load_oidc
from phalanx.operate.control.people.oidc import Nonces, Provider

FETCH_S: Final = 5.0
DOCUMENT_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class OidcDoor:
    """One provider, as the home's oidc.yaml names it."""

    provider: Provider
    nonces: Nonces = field(default_factory=Nonces)


def open_door(home: Path) -> OidcDoor | None:
    """None where the home has no oidc.yaml. Raises SpecError for one that is not acceptable, SetupError without the extra."""
    config = load_oidc(home)
    return None if config is None else OidcDoor(Provider(config, fetched))


def fetched(url: str) -> bytes:
    """The body, without following redirects. Raises StoreUnavailable."""
    found = bytearray()
    try:
        with httpx.stream("GET", url, timeout=FETCH_S, trust_env=not url.startswith("http://")) as answer:
            if answer.status_code != 200:
                raise StoreUnavailable(f"{url} answers {answer.status_code}")
            for piece in answer.iter_bytes():
                found += piece
                if len(found) > DOCUMENT_BYTES_MAX:
                    raise StoreUnavailable(f"{url} answers more than {DOCUMENT_BYTES_MAX} bytes")
    except httpx.HTTPError as error:
        raise StoreUnavailable(f"{url} does not answer ({type(error).__name__})") from error
    return bytes(found)
