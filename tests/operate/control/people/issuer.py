"""A little OpenID provider of the tests' own, over HTTP: discovery, keys, a login that asks nobody, and PKCE that it insists on."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "phalanx-cli"


class Issuer:
    """claims: of whoever logs in next, over what a good token has."""

    def __init__(self) -> None:
        self.url = ""
        self.key = RSAKey.generate_key(2048, {"kid": "one"}, auto_kid=False)
        self.more_keys: list[Any] = []
        self.claims: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.key_asked = 0
        self.devices: dict[str, dict[str, str]] = {}
        self.answers: list[str] = []
        """Errors that devices are given first, when they ask for their token."""
        self.names_nonce = False
        self.device_asked = 0

    def token(
        self, nonce: str | None, now_s: int | None = None, key: Any = None, header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """Signed as a good one is, unless told otherwise; a claim of None is left out."""
        now_s = int(time.time()) if now_s is None else now_s
        good: dict[str, Any] = {"iss": self.url, "aud": CLIENT, "sub": "s-1", "nonce": nonce, "iat": now_s, "exp": now_s + 300}
        good |= {"preferred_username": "Ada.Lovelace@example.org", "groups": ["hoplites"], **self.claims, **claims}
        given = {name: value for name, value in good.items() if value is not None}
        return jwt.encode({"alg": "RS256", "kid": "one", **(header or {})}, given, key or self.key)

    def document(self, path: str) -> dict[str, Any]:
        if path == "/keys":
            self.key_asked += 1
            return {"keys": [key.as_dict(private=False) for key in (self.key, *self.more_keys)]}
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "device_authorization_endpoint": f"{self.url}/device",
        }

    def device(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """A code for a device, and one for its person (RFC 8628, 3.2)."""
        if form.get("client_id") != CLIENT or "openid" not in form.get("scope", ""):
            return 400, {"error": "invalid_client"}
        code = f"device-{len(self.devices)}"
        self.devices[code] = form
        return 200, {
            "device_code": code, "user_code": "WDJB-MJHT", "verification_uri": f"{self.url}/type", "expires_in": 600, "interval": 2,
        }  # fmt: skip

    def device_token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.device_asked += 1
        if form.get("client_id") != CLIENT or form["device_code"] not in self.devices:
            return 400, {"error": "invalid_grant"}
        if self.answers:
            return 400, {"error": self.answers.pop(0)}
        asked = self.devices.pop(form["device_code"])
        nonce = asked["nonce"] if self.names_nonce else None
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": self.token(nonce)}

    def authorized(self, query: dict[str, str]) -> str:
        """Where the browser is sent."""
        assert (query["client_id"], query["code_challenge_method"], query["response_type"]) == (CLIENT, "S256", "code")
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def exchanged(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        asked = self.codes.pop(form.get("code", ""), None)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=").decode()
        if asked is None or challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": self.token(asked["nonce"])}


@contextmanager
def serving(issuer: Issuer) -> Iterator[Issuer]:
    """On a free port of loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(issuer))
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield issuer
    server.shutdown()
    server.server_close()
    thread.join()


def _handler(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/authorize":
                self._answer(302, {}, issuer.authorized({name: values[0] for name, values in parse_qs(parts.query).items()}))
            else:
                self._answer(200, issuer.document(parts.path))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            if self.path == "/device":
                self._answer(*issuer.device(form))
            else:
                self._answer(*(issuer.device_token(form) if "device_code" in form else issuer.exchanged(form)))

        def _answer(self, status: int, data: dict[str, Any], location: str = "") -> None:
            text = json.dumps(data).encode()
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            pass

    return Handler
