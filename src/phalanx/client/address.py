"""Where the control plane is and which token opens it: from the environment, else from what `phalanx up` left in the home."""

import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from phalanx.client.api import Client
from phalanx.client.login import kept_login
from phalanx.core.errors import NotFound, ServerUnreachable, SetupError

if TYPE_CHECKING:
    from phalanx.client.asynchronous import AsyncClient
    from phalanx.core.clusters import Cluster, Clusters


@dataclass(frozen=True, slots=True)
class Address:
    """A server and the token to show it. The token stays out of every message."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Address({self.url!r}, token hidden)"


def home_folder(home: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The home in use: the given one, else $PHALANX_HOME, else ~/.phalanx; absolute. Raises SetupError."""
    folder = home or Path(environ.get("PHALANX_HOME") or "~/.phalanx")
    try:
        return folder.expanduser().absolute()
    except RuntimeError as error:
        raise SetupError("PHALANX_HOME", str(folder), "begins with a user that this machine does not know") from error


def connect(home: Path | None = None, environ: Mapping[str, str] = os.environ) -> Client:
    """A client of the platform in `home`; without one, of the cluster that PHALANX_CLUSTER names, else of PHALANX_URL with
    PHALANX_TOKEN, else of the usual home.

    Raises ServerUnreachable when the platform of that home was never started, SetupError when the address cannot be used.
    Whether it answers shows at the first call. A server that comes back on another port is found again.
    """
    find = _finder(home, environ)
    first = find()
    return Client(first.url, first.token, relocate=lambda: ((found := find()).url, found.token))


def connect_async(home: Path | None = None, environ: Mapping[str, str] = os.environ) -> "AsyncClient":
    """As `connect`, for an event loop. Raises likewise."""
    from phalanx.client.asynchronous import AsyncClient  # nobody else need import asyncio

    find = _finder(home, environ)
    first = find()
    return AsyncClient(first.url, first.token, relocate=lambda: ((found := find()).url, found.token))


def clusters_of(home: Path | None = None, environ: Mapping[str, str] = os.environ) -> "Clusters":
    """What the clusters file in the home says. Raises NotFound when there is none, SpecError."""
    from phalanx.core.clusters import CLUSTERS_FILE
    from phalanx.core.clusters_parse import load_clusters  # only needed by those who have several

    return load_clusters(home_folder(home, environ) / CLUSTERS_FILE)


def address_of(name: str, cluster: "Cluster") -> Callable[[], Address]:
    """Finds the platform that has this name in a clusters file. Raises SetupError when its address or its token cannot be used."""
    at = f"clusters.{name}"
    if cluster.home:
        return lambda: _from_home(Path(cluster.home), f"{at}.home")
    return lambda: Address(checked_url(f"{at}.url", cluster.url), _token_in(Path(cluster.token_file), f"{at}.token_file"))


def _token_in(file: Path, field: str) -> str:
    """Raises SetupError that names `field`."""
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):  # opening a pipe would wait for ever
            raise ValueError("is no file")
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # such as bytes that are no text, or a NUL in the name
        raise SetupError(field, str(file), "cannot be read; copy the file `token` of the platform's home there") from error
    if mode & 0o077:
        raise SetupError(field, str(file), "may be read by others of this machine; `chmod 600` it")
    return checked_token(field, text.strip())


def _named_cluster(environ: Mapping[str, str]) -> Callable[[], Address]:
    name, known = environ["PHALANX_CLUSTER"], clusters_of(None, environ).clusters
    if name not in known:
        raise NotFound("PHALANX_CLUSTER", name, f"is not in clusters.yaml, which has {', '.join(known)}")
    return address_of(name, known[name])


def _finder(home: Path | None, environ: Mapping[str, str]) -> Callable[[], Address]:
    if home is None and environ.get("PHALANX_CLUSTER"):
        return _named_cluster(environ)
    if home is None and environ.get("PHALANX_URL"):
        return lambda: _from_environment(environ)
    folder = home_folder(home, environ)
    return lambda: _from_home(folder)


def _from_environment(environ: Mapping[str, str]) -> Address:
    url, token = environ["PHALANX_URL"].rstrip("/"), environ.get("PHALANX_TOKEN", "")
    if not token:
        raise SetupError(
            "PHALANX_TOKEN", "(not set)", f"set it to a token of {url}, or unset PHALANX_URL to use this machine's platform"
        )
    return Address(checked_url("PHALANX_URL", url), checked_token("PHALANX_TOKEN", token))


def _from_home(home: Path, field: str = "PHALANX_HOME") -> Address:
    try:
        url = json.loads((home / "run" / "server.json").read_text(encoding="utf-8"))["url"]
        token = (home / "token").read_text(encoding="utf-8").strip()
    except FileNotFoundError as error:
        if (login := kept_login(home)) is not None:
            return Address(checked_url("login.url", login[0]), checked_token("login.token", login[1]))
        raise ServerUnreachable(f"no platform runs in {home}; start one with `phalanx up`, or set PHALANX_HOME") from error
    except PermissionError as error:
        raise SetupError(field, str(home), f"belongs to another user; set {field} to a folder of yours") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(field, str(home), "its run/server.json or token cannot be read; run `phalanx up` again") from error
    return Address(str(url).rstrip("/"), checked_token("token", token))


def checked_url(field: str, url: str) -> str:
    """`url` as an address that a token may be sent to: https, or http on loopback. Raises SetupError that names `field`."""
    url = url.rstrip("/")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (reading it is what checks it)
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL) as error:
        raise SetupError(field, url, f"is not a URL ({error}); write http://HOST:PORT or https://HOST") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(field, url, "write http://HOST:PORT or https://HOST")
    if parts.username is not None or parts.query or parts.fragment:  # a name before the host would take the token's place
        raise SetupError(field, url.rpartition("@")[2], "write the address alone: http://HOST:PORT or https://HOST")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise SetupError(field, url, "use https, or a tunnel to this machine's loopback: the token would travel readable")
    return url


def checked_token(field: str, token: str) -> str:
    """A token is a header's value: printable ASCII. The bad value is not repeated."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SetupError(field, "(hidden)", "is not a Phalanx token; copy it again from the file `token` in the server's home")
    return token


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine itself, by name or by number."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
