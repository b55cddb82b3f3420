"""Whether an id token is what it claims to be: by OpenID Connect Core 1.0, section 3.1.3.7, with keys of the provider alone.

Signatures by the provider's asymmetric keys only: `none` and shared-key algorithms are not in the list, whatever the token says of
itself, so its public key is never taken for a shared one.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from phalanx.core.errors import RateLimited, SetupError, StoreUnavailable, Unauthorized
from phalanx.core.ids import NAME
from phalanx.core.oidc import NONCE_MS, OidcConfig, is_safe_url

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
LEEWAY_S: Final = 60
TOKEN_CHARS_MAX: Final = 64 * 1024
KEYS_AGAIN_MS: Final = 30_000
"""Keys are asked for again when a token names one that is not known, and no sooner than this."""

DEVICE_S: Final = 300
"""Of a token without a nonce, from its making to its use: with LEEWAY_S on either side less than the time for which it is known to
have been used."""

USED_MAX: Final = 100_000
"""Nonces kept at once, some 10 MB: as many logins in ten minutes."""

GROUPS_MAX: Final = 10_000
_FIELD: Final = "id_token"

Fetch = Callable[[str], bytes]
"""The body of a URL. Raises StoreUnavailable."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom the provider means. name: by which they would go here. groups: of the provider's."""

    issuer: str
    subject: str
    name: str
    groups: frozenset[str]


class Provider:
    """One OpenID provider. Not thread-safe: one login after the other."""

    def __init__(self, config: OidcConfig, fetch: Fetch) -> None:
        """Raises SetupError without the extra."""
        try:
            import joserfc  # noqa: F401 (that it is there)
        except ImportError as error:
            raise SetupError("oidc.yaml", "joserfc", "logins by OpenID need the extra: pip install 'phalanx[oidc]'") from error
        self.config = config
        self._fetch = fetch
        self._keys: Any = None
        self._fetched_ms: int | None = None

    def identity(self, id_token: str, nonce: str, now_ms: int, device: bool = False) -> Identity:
        """Of a `device`, whose token need not name the nonce, only while it is young; one that names another is no good either.
        Raises Unauthorized for a token that is not good, StoreUnavailable when the provider is away."""
        from joserfc.errors import JoseError
        from joserfc.jwt import JWTClaimsRegistry

        claims = self._verified(id_token, now_ms)
        registry = JWTClaimsRegistry(
            now=now_ms // 1000,
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self.config.issuer},
            aud={"essential": True, "value": self.config.client_id},
            exp={"essential": True},
            iat={"essential": True},
            sub={"essential": True},
            nonce={"essential": not device, "value": nonce},
        )
        try:
            registry.validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            raise Unauthorized(_FIELD, "(not shown)", f"is not for this login ({error}); log in again") from error
        if device and now_ms // 1000 - int(claims["iat"]) > DEVICE_S:
            raise Unauthorized(_FIELD, "(not shown)", f"is older than {DEVICE_S} s; log in again")
        others = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if len(others) > 1 and claims.get("azp") != self.config.client_id:
            raise Unauthorized(_FIELD, "(not shown)", "is for several, and was not given to this platform; log in again")
        return self._identity(claims)

    def _verified(self, id_token: str, now_ms: int) -> dict[str, Any]:
        from joserfc import jwt
        from joserfc.errors import JoseError

        if len(id_token) > TOKEN_CHARS_MAX:
            raise Unauthorized(_FIELD, "(not shown)", f"has more than {TOKEN_CHARS_MAX} characters")
        for again in (False, True):
            try:
                return dict(jwt.decode(id_token, self._key_set(now_ms, again), algorithms=list(ALGORITHMS)).claims)
            except (JoseError, ValueError, TypeError, KeyError) as error:
                if again or not self._may_fetch(now_ms):
                    raise Unauthorized(_FIELD, "(not shown)", f"was not signed by {self.config.issuer} ({error})") from error
        raise AssertionError("unreachable")

    def _may_fetch(self, now_ms: int) -> bool:
        return self._fetched_ms is None or not 0 <= now_ms - self._fetched_ms < KEYS_AGAIN_MS

    def _key_set(self, now_ms: int, again: bool) -> Any:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        if self._keys is not None and not again:
            return self._keys
        self._fetched_ms = now_ms
        found = self._document(f"{self.config.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.config.issuer:
            raise StoreUnavailable(f"{self.config.issuer} calls itself otherwise; mend `issuer` in oidc.yaml")
        keys = self._document(str(found.get("jwks_uri")))
        public = [key for key in keys.get("keys", ()) if isinstance(key, dict) and key.get("kty") in ("RSA", "EC")]
        try:
            self._keys = KeySet.import_key_set({"keys": public})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise StoreUnavailable(f"the keys of {self.config.issuer} cannot be read ({error})") from error
        return self._keys

    def _document(self, url: str) -> dict[str, Any]:
        if not is_safe_url(url):
            raise StoreUnavailable(f"{self.config.issuer} names a place that is not https; nothing is fetched from there")
        try:
            data = json.loads(self._fetch(url))
        except ValueError as error:
            raise StoreUnavailable(f"{url} does not answer with JSON") from error
        return data if isinstance(data, dict) else {}

    def _identity(self, claims: dict[str, Any]) -> Identity:
        subject, said = claims["sub"], claims.get(self.config.user_claim)
        if not isinstance(subject, str) or not 0 < len(subject) <= 255 or not subject.isprintable():
            raise Unauthorized(_FIELD, "(not shown)", "names no subject of 1 to 255 characters")
        groups = claims.get(self.config.groups_claim, [])
        named = frozenset(one for one in groups[:GROUPS_MAX] if isinstance(one, str)) if isinstance(groups, list) else frozenset()
        name = re.sub(r"[^a-z0-9]+", "-", str(said or "").split("@")[0].lower()).strip("-")
        if NAME.fullmatch(name) is None:
            raise Unauthorized(
                _FIELD, "(not shown)", f"has no name in its claim {self.config.user_claim!r} that could be a user's here"
            )
        return Identity(self.config.issuer, subject, name, named)


class Nonces:
    """Words that each let one login through, known again without being kept: of a key that lives as long as this process. Only
    those that were used are kept, for as long as they would be good."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._used: dict[str, int] = {}  # in the order of their use, which is that of the clock

    def make(self, now_ms: int) -> str:
        """A new one. now_ms: monotonic."""
        body = f"{now_ms}.{secrets.token_urlsafe(16)}"
        return f"{body}.{self._sign(body)}"

    def use(self, nonce: str, now_ms: int) -> None:
        """Raises Unauthorized for one that was never made, is too old, or was used; RateLimited."""
        body, _, signature = nonce.rpartition(".")
        made = body.partition(".")[0]
        if not hmac.compare_digest(signature.encode(), self._sign(body).encode()) or not made.isdecimal():
            raise Unauthorized("nonce", "(not shown)", "was not given out by this server since it started; log in again")
        if not 0 <= now_ms - int(made) < NONCE_MS or nonce in self._used:
            raise Unauthorized("nonce", "(not shown)", "is over or was used; log in again")
        self._note(nonce, now_ms)

    def spend(self, id_token: str, now_ms: int) -> None:
        """Notes a token that no nonce binds to one login. Raises Unauthorized for one that was used, RateLimited. Known
        by what was signed: of an ECDSA signature anybody can make a second one that is good (SEC 1, 4.1.3: s and n - s)."""
        sha256 = hashlib.sha256(id_token.rpartition(".")[0].encode()).hexdigest()
        if sha256 in self._used:
            raise Unauthorized(_FIELD, "(not shown)", "was used; log in again")
        self._note(sha256, now_ms)

    def _note(self, word: str, now_ms: int) -> None:
        self._forget(now_ms)
        if len(self._used) >= USED_MAX:
            raise RateLimited(f"{USED_MAX} logins came in ten minutes; log in again later", 60.0)
        self._used[word] = now_ms

    def _forget(self, now_ms: int) -> None:
        """Those that are over anyway: each once, from the oldest on."""
        while self._used and now_ms - self._used[oldest := next(iter(self._used))] >= NONCE_MS:
            del self._used[oldest]

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()
