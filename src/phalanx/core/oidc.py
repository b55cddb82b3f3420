"""How people come by an OpenID provider: the home's `oidc.yaml`, and what the API says of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

from pydantic import ConfigDict, Strict, TypeAdapter, ValidationError

from phalanx.core.errors import SpecError
from phalanx.core.ids import NAME
from phalanx.core.people import LIFETIME_MS_MAX, Role, Scope
from phalanx.core.units import duration_ms
from phalanx.core.validation import value_of, what_to_write
from phalanx.core.wire import CLOSED
from phalanx.core.yaml_text import read_yaml_file

OIDC_FILE: Final = "oidc.yaml"
OIDC_BYTES_MAX: Final = 64 * 1024
NONCE_MS: Final = 600_000
"""From the beginning of a login to its end."""


NO_DEVICES: Final = "is no way in here: its admin would write `device_logins: true` into oidc.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcConfig:
    """issuer: as its discovery document says it, to the letter. client_id: of a public client that may use PKCE and redirect to
    http://127.0.0.1 on any port. scope: what is asked of it. user_claim, groups_claim: where the id token has somebody's name and
    groups. teams: by group, the role in each team that it gives. platform_groups: those whose people may everything.
    given_scope, given_lifetime: of the token that a login gives. device_logins: whether one may log in with a browser
    elsewhere, by a code that is typed there (RFC 8628)."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    issuer: str
    client_id: str
    scope: str = "openid profile groups"
    user_claim: str = "preferred_username"
    groups_claim: str = "groups"
    teams: Mapping[str, Mapping[str, Role]] = field(default_factory=dict)
    platform_groups: tuple[str, ...] = ()
    given_scope: Scope = "submit"
    given_lifetime: str = "12h"
    device_logins: Annotated[bool, Strict()] = False

    @property
    def lifetime_ms(self) -> int:
        return duration_ms(self.given_lifetime)

    @property
    def mapped(self) -> frozenset[str]:
        """Teams whose roles come from groups alone."""
        return frozenset(team for roles in self.teams.values() for team in roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcView:
    """What a login begins with. nonce: good for one, for ten minutes. device_logins: as in oidc.yaml."""

    issuer: str
    client_id: str
    scope: str
    nonce: str
    device_logins: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcLoginRequest:
    """Body of POST /oidc/login: the id token that the provider gave for that nonce; of a `device`, for which few providers put one
    into their token, in the time of that nonce."""

    __pydantic_config__ = CLOSED

    id_token: str
    nonce: str
    device: Annotated[bool, Strict()] = False


def load_oidc(home: Path) -> OidcConfig | None:
    """What the home's file says; None without one. Raises SpecError."""
    path = home / OIDC_FILE
    if not path.exists():
        return None
    data = read_yaml_file(path, OIDC_FILE, OIDC_BYTES_MAX)
    if isinstance(data, dict) and isinstance(data.get("platform_groups"), list):
        data = {**data, "platform_groups": tuple(data["platform_groups"])}
    try:
        config: OidcConfig = TypeAdapter(OidcConfig).validate_python(data)
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"]) or OIDC_FILE
        raise SpecError(f"{OIDC_FILE} {at}", value_of(first), what_to_write(first)) from error
    _check(config)
    return config


def is_safe_url(url: str) -> bool:
    """https, or http on this machine itself: what is fetched there decides who comes in."""
    parts = urlsplit(url)
    try:
        loopback = parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:
        loopback = False
    return bool(parts.hostname) and parts.username is None and (parts.scheme == "https" or (parts.scheme == "http" and loopback))


def _check(config: OidcConfig) -> None:
    if not is_safe_url(config.issuer):
        raise SpecError(f"{OIDC_FILE} issuer", config.issuer, "write its https URL")
    if not config.client_id:
        raise SpecError(f"{OIDC_FILE} client_id", config.client_id, "write the id by which the provider knows this platform")
    for group, roles in config.teams.items():
        for team in roles:
            if NAME.fullmatch(team) is None:
                raise SpecError(f"{OIDC_FILE} teams.{group}", team, "name a team, as `phalanx team ls` shows it")
    try:
        good = 60_000 <= config.lifetime_ms <= LIFETIME_MS_MAX
    except ValueError:
        good = False
    if not good:
        raise SpecError(f"{OIDC_FILE} given_lifetime", config.given_lifetime, "write a duration from '1m' to '365d'")
