"""Logging in by an OpenID provider: authorization code with PKCE (RFC 7636), redirected to this machine's loopback (RFC 8252).

The code and its verifier never leave this process but for the provider's token endpoint; the platform sees the id token alone.
"""

import hmac
import json
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx

from phalanx.client.api import Client
from phalanx.core.errors import ServerUnreachable, SetupError, Unauthorized, WaitTimeout
from phalanx.core.oidc import is_safe_url

WAIT_S: Final = 300.0
FETCH_S: Final = 10.0
CALLBACK: Final = "/callback"
_NO_TOKEN: Final = "none"  # noqa: S105 (both routes of a login want none)


def log_in(url: str, show: Callable[[str], None], wait_s: float = WAIT_S) -> str:
    """A token of the platform at `url`, for whoever logs in at the address that `show` is given.

    Raises NotFound when the platform knows no provider, Unauthorized when either of them refuses, WaitTimeout when nobody came back
    in `wait_s`, SetupError without the extra, ServerUnreachable.
    """
    try:
        from authlib.integrations.httpx_client import OAuth2Client  # type: ignore[import-untyped]
    except ImportError as error:
        raise SetupError("--oidc", "authlib", "needs the extra: pip install 'phalanx[oidc]'") from error
    with Client(url, _NO_TOKEN) as client, _Callback() as callback:
        begun = client.people.begin_oidc()
        places = places_of(begun.issuer, "authorization_endpoint", "token_endpoint")
        with OAuth2Client(
            begun.client_id,
            redirect_uri=callback.url,
            scope=begun.scope,
            code_challenge_method="S256",
            token_endpoint_auth_method="none",  # noqa: S106 (a public client: PKCE takes a secret's place)
            timeout=FETCH_S,
            trust_env=not begun.issuer.startswith("http://"),
        ) as oauth:
            from authlib.common.security import generate_token  # type: ignore[import-untyped]

            verifier = generate_token(64)
            address, state = oauth.create_authorization_url(
                places["authorization_endpoint"], code_verifier=verifier, nonce=begun.nonce
            )
            show(address)
            code = callback.code(state, wait_s)
            id_token = _exchanged(oauth, places["token_endpoint"], code, verifier)
        return client.people.end_oidc(id_token, begun.nonce).token


def _exchanged(oauth: Any, endpoint: str, code: str, verifier: str) -> str:
    from authlib.common.errors import AuthlibBaseError  # type: ignore[import-untyped]

    try:
        answer = oauth.fetch_token(endpoint, code=code, code_verifier=verifier)
    except AuthlibBaseError as error:
        raise Unauthorized("login", "(refused)", f"the provider gives no token ({error.error}); log in again") from error
    except (httpx.HTTPError, ValueError) as error:
        raise ServerUnreachable(f"{endpoint} gives no token ({type(error).__name__}); log in again", lost=True) from error
    return id_token_of(answer)


def id_token_of(answer: Any) -> str:
    """Of what the provider's token endpoint answers. Raises Unauthorized where it has none."""
    if not isinstance(answer.get("id_token"), str):
        raise Unauthorized("login", "(no id_token)", "the provider gave no id token; the scope in oidc.yaml needs openid")
    return str(answer["id_token"])


def places_of(issuer: str, *wanted: str) -> dict[str, str]:
    """Of the provider's discovery document those that a login needs. Raises SetupError, ServerUnreachable."""
    url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
    if not is_safe_url(url):
        raise SetupError("issuer", issuer, "is not https; nothing is sent there")
    try:
        found = json.loads(httpx.get(url, timeout=FETCH_S, trust_env=not url.startswith("http://")).raise_for_status().content)
        places = {name: str(found[name]) for name in wanted if name in found}
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ServerUnreachable(f"{url} is no description of a provider ({type(error).__name__})") from error
    for name in wanted:
        if name not in places:
            raise SetupError("issuer", issuer, f"has no {name}, so nobody can log in this way")
    for name, place in places.items():
        if not is_safe_url(place):
            raise SetupError(name, place, "is not https; nothing is sent there")
    return places


class _Callback:
    """A port of this machine's own, to which the browser is sent back once."""

    def __init__(self) -> None:
        self._state, self._code, self._refused = "", "", ""
        self._server = HTTPServer(("127.0.0.1", 0), _handler(self._came))

    def __enter__(self) -> "_Callback":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{CALLBACK}"

    def code(self, state: str, wait_s: float) -> str:
        """The code that came with that state; others are passed over. Raises Unauthorized, WaitTimeout."""
        self._state, end_s = state, time.monotonic() + wait_s
        while not self._code and not self._refused:
            self._server.timeout = end_s - time.monotonic()
            if self._server.timeout <= 0:
                raise WaitTimeout(f"nobody logged in within {wait_s:g} s; try again")
            self._server.handle_request()
        if self._refused:
            raise Unauthorized("login", self._refused, "the provider refused; ask who runs it")
        return self._code

    def _came(self, path: str) -> bool:
        parts = urlsplit(path)
        said = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != CALLBACK or not hmac.compare_digest(said.get("state", "").encode(), self._state.encode()):
            return False
        self._code, self._refused = said.get("code", ""), said.get("error", "")[:100]
        return bool(self._code)


def _handler(came: Callable[[str], bool]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Says in plain text whether that was it."""

        timeout = 5

        def do_GET(self) -> None:
            good = came(self.path)
            text = b"You are logged in; close this page.\n" if good else b"This is not the login that is waited for.\n"
            self.send_response(200 if good else 400)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            """The line would have the code in it."""

    return Handler
