"""Logging in by an OpenID provider without a browser here: a code that is shown, and typed in on another device (RFC 8628)."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx

from phalanx.client.api import Client
from phalanx.client.oidc import FETCH_S, id_token_of, places_of
from phalanx.core.errors import ServerUnreachable, SetupError, Unauthorized, WaitTimeout
from phalanx.core.oidc import NO_DEVICES, NONCE_MS, OidcView, is_safe_url

GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL_S: Final = 5.0
"""Between two questions, where the provider says nothing else; and so much more each time that it asks for patience."""

_CHARS_MAX: Final = 500
_NO_TOKEN: Final = "none"  # noqa: S105 (both routes of a login want none)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a device was given: a code to ask with, the one to type at `address`, how long and how often it may ask."""

    device_code: str
    user_code: str
    address: str
    lasts_s: float
    interval_s: float


def log_in_elsewhere(
    url: str,
    show: Callable[[str, str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """A token of the platform at `url`, for whoever logs in at the address with the code that `show` is given.

    Raises NotFound when the platform knows no provider, SetupError where it or the provider lets no device in, and without the
    extra, Unauthorized when either of them refuses, WaitTimeout when nobody typed the code in time, ServerUnreachable.
    """
    try:
        from authlib.integrations.httpx_client import OAuth2Client  # type: ignore[import-untyped]
    except ImportError as error:
        raise SetupError("--device", "authlib", "needs the extra: pip install 'phalanx[oidc]'") from error
    with Client(url, _NO_TOKEN) as client:
        begun = client.people.begin_oidc()
        if not begun.device_logins:
            raise SetupError("--device", url, NO_DEVICES)
        places = places_of(begun.issuer, "device_authorization_endpoint", "token_endpoint")
        asked = _asked(places["device_authorization_endpoint"], begun)
        show(asked.address, asked.user_code)
        with OAuth2Client(
            begun.client_id,
            token_endpoint_auth_method="none",  # noqa: S106 (a public client: the device's code takes a secret's place)
            timeout=FETCH_S,
            trust_env=not begun.issuer.startswith("http://"),
        ) as oauth:
            id_token = _awaited(oauth, places["token_endpoint"], asked, sleep, clock)
        return client.people.end_oidc(id_token, begun.nonce, device=True).token


def _asked(endpoint: str, begun: OidcView) -> _Asked:
    form = {"client_id": begun.client_id, "scope": begun.scope, "nonce": begun.nonce}  # some put the nonce into their token
    try:
        answer = httpx.post(endpoint, data=form, timeout=FETCH_S, trust_env=not endpoint.startswith("http://"))
        said: dict[str, Any] = json.loads(answer.content)
        if answer.status_code != httpx.codes.OK:
            why = str(said.get("error", answer.status_code))[:100]
            raise Unauthorized("login", "(refused)", f"the provider gives this device no code ({why}); ask who runs it")
        address = str(said.get("verification_uri") or said["verification_url"])  # the second is Google's word for it
        asked = _Asked(
            str(said["device_code"]),
            str(said["user_code"]),
            address,
            float(said["expires_in"]),
            float(said.get("interval", INTERVAL_S)),
        )
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerUnreachable(f"{endpoint} gives no code ({type(error).__name__}); log in again", lost=True) from error
    if not is_safe_url(address) or max(len(address), len(asked.user_code)) > _CHARS_MAX:
        raise SetupError("verification_uri", address[:_CHARS_MAX], "is no https address; nobody is sent there")
    return asked


def _awaited(oauth: Any, endpoint: str, asked: _Asked, sleep: Callable[[float], None], clock: Callable[[], float]) -> str:
    """The id token, once somebody typed the code. A provider that is away for a while is asked more rarely."""
    from authlib.common.errors import AuthlibBaseError  # type: ignore[import-untyped]

    end_s, interval_s = clock() + min(asked.lasts_s, NONCE_MS / 1000), max(asked.interval_s, 1.0)
    while clock() + interval_s < end_s:
        sleep(interval_s)
        try:
            return id_token_of(oauth.fetch_token(endpoint, grant_type=GRANT, device_code=asked.device_code))
        except AuthlibBaseError as error:
            match error.error:
                case "authorization_pending":
                    pass
                case "slow_down":
                    interval_s += INTERVAL_S
                case "expired_token":
                    break
                case refused:
                    raise Unauthorized("login", str(refused)[:100], "the provider refused; log in again") from error
        except (httpx.HTTPError, ValueError):
            interval_s += INTERVAL_S
    raise WaitTimeout("nobody typed the code in time; log in again")
