"""One POST to a webhook: to an address that may be told things, signed, and without a word of the answer being kept.

The address is resolved once, checked, and connected to as it was checked, so that a name which means something else a moment later
leads nowhere else. Private networks are allowed, since jobs reach them anyway. So is loopback, but not for a team where others do
not trust it: what listens there takes whoever comes from the control plane's own machine for its owner.
"""

import asyncio
import contextlib
import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit, urlunsplit

import httpx

from phalanx.core.errors import SpecError, WorldError

TIMEOUT_S: Final = 10.0
TIMESTAMP_HEADER: Final = "Phalanx-Timestamp"
SIGNATURE_HEADER: Final = "Phalanx-Signature"
ID_HEADER: Final = "Phalanx-Event"

_STAND_FOR_IPV4: Final = tuple(
    ip_network(text)
    for text in (
        "::/96",  # IPv4-compatible, long deprecated
        "::ffff:0:0:0/96",  # IPv4-translated, RFC 2765
        "64:ff9b::/96",  # NAT64, RFC 6052
        "64:ff9b:1::/48",  # NAT64 of one's own, RFC 8215, with the usual prefix of 96 bits
    )
)
"""Prefixes of IPv6 addresses that end in an IPv4 one."""

_LOOKUPS: Final = threading.BoundedSemaphore(256)
_REFUSED: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host, RFC 1122
        "169.254.0.0/16",  # link-local, RFC 3927; metadata of most clouds
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "100.100.100.200/32",  # metadata of Alibaba Cloud
        "168.63.129.16/32",  # Azure's host
        "192.0.0.192/32",  # metadata of Oracle Cloud Classic
        "::/128",
        "fe80::/10",  # link-local, RFC 4291
        "ff00::/8",  # multicast
        "fd00:ec2::/32",  # metadata, credentials and DNS of AWS
        "fd20:ce::254/128",  # metadata of Google Cloud
    )
)

_LOOPBACK_6: Final = IPv6Address("::1")
_LOOPBACK: Final = tuple(ip_network(text) for text in ("127.0.0.0/8", "::1/128"))

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) to addresses as text. Raises OSError."""


class Refused(Exception):
    """Nothing may be sent there, now or later; the text says why."""


@dataclass(frozen=True, slots=True)
class Target:
    """A webhook, resolved: `addresses` are what to connect to, the first that listens; `host` is what the URL names, in ASCII."""

    url: str
    host: str
    addresses: tuple[str, ...]


def signed(body: bytes, timestamp_s: int, key: str) -> str:
    """HMAC-SHA256 over '<timestamp>.<body>', as the signature header has it."""
    return "sha256=" + hmac.new(key.encode(), f"{timestamp_s}.".encode() + body, hashlib.sha256).hexdigest()


def check_literal(url: str, loopback: bool = True) -> None:
    """Raises SpecError when the URL itself names an address that may not be told. What a name means is seen when it is used.
    loopback: whether this machine may be."""
    host = urlsplit(url).hostname or ""
    try:
        why = _why_refused(_literal(host), loopback)
    except ValueError:
        return
    if why:
        raise SpecError("notify.webhook", url, f"{why}; name a receiver of your own")


async def resolve(host: str, port: int) -> Sequence[str]:
    """By the system's resolver, which may take half a minute and cannot be stopped: in a thread that neither the loop's own threads
    nor the end of the process wait for."""
    if not _LOOKUPS.acquire(blocking=False):
        raise OSError("too many names are being resolved")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Sequence[str]] = loop.create_future()
    threading.Thread(target=_look_up, args=(host, port, loop, answer), name="resolve", daemon=True).start()
    return await answer


def _look_up(host: str, port: int, loop: asyncio.AbstractEventLoop, answer: "asyncio.Future[Sequence[str]]") -> None:
    found: Sequence[str] = ()
    problem: Exception | None = None
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        problem = error
    finally:
        _LOOKUPS.release()

    def tell() -> None:
        if not answer.done():  # nobody waits any more
            answer.set_exception(problem) if problem else answer.set_result(found)

    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(tell)


async def target_of(url: str, resolve: Resolve = resolve, loopback: bool = True) -> Target:
    """Resolves and checks. loopback: whether this machine may be told. Raises Refused, and OSError for a name that means nothing
    now."""
    parts = urlsplit(url)
    host, port = _ascii(parts.hostname or ""), parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    if not host or not port:
        raise Refused("only http and https URLs with a host are told")
    addresses = await resolve(host, port)
    if not addresses:
        raise OSError("its name has no address")
    for address in addresses:  # one bad one is enough: a name that mixes them is up to something
        if why := _why_refused(address, loopback):
            raise Refused(f"{host} is {address}: {why}")
    return Target(url, host, tuple(addresses))


async def post(target: Target, body: bytes, headers: Mapping[str, str]) -> int:
    """The answer's status; its words are not read and redirects not followed. Raises WorldError when none came."""
    parts = urlsplit(target.url)
    sent = {**headers, "Host": _authority(target.host, parts.port), "Content-Type": "application/json"}
    verify = _trusted() if parts.scheme == "https" else _nobody()
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            httpx.AsyncClient(verify=verify, trust_env=False, follow_redirects=False, timeout=TIMEOUT_S, headers=sent) as client,
        ):
            *first, last = target.addresses
            for address in first:  # as with `localhost` on a machine whose receiver listens on IPv4 alone
                with contextlib.suppress(httpx.ConnectError):
                    return await _post(client, parts, address, target.host, body)
            return await _post(client, parts, last, target.host, body)
    except TimeoutError as error:
        raise WorldError(f"no answer in {TIMEOUT_S:.0f} s") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:  # what they say may quote the receiver
        untrusted = "CERTIFICATE_VERIFY_FAILED" in str(error)
        raise WorldError("its certificate is not trusted" if untrusted else type(error).__name__) from error


async def _post(client: httpx.AsyncClient, parts: SplitResult, address: str, host: str, body: bytes) -> int:
    connect_to = urlunsplit((parts.scheme, _authority(address, parts.port), parts.path or "/", parts.query, ""))
    async with client.stream("POST", connect_to, content=body, extensions={"sni_hostname": host}) as answer:
        return answer.status_code


def _ascii(host: str) -> str:
    """As it stands in a header and a certificate. Raises Refused."""
    try:
        return host if host.isascii() else host.encode("idna").decode()
    except UnicodeError as error:
        raise Refused("its host is no name") from error


def _authority(host: str, port: int | None) -> str:
    literal = f"[{host}]" if ":" in host else host
    return f"{literal}:{port}" if port else literal


def _literal(host: str) -> str:
    """As an address, where it is one in whatever spelling the resolver takes for one: `127.1`, `0x7f000001`, `2130706433`."""
    if host.rstrip(".").lower() == "localhost" or host.rstrip(".").lower().endswith(".localhost"):  # RFC 6761
        return "127.0.0.1"
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return host


def _why_refused(text: str, loopback: bool) -> str:
    """Why that address may not be told; '' when it may. Raises ValueError for what is no address."""
    address = _meant(ip_address(text.partition("%")[0]))
    if any(address in network for network in _REFUSED if network.version == address.version):
        return "link-local, metadata, multicast and unspecified addresses are not told"
    if not loopback and any(address in network for network in _LOOPBACK if network.version == address.version):
        return "loopback is not told for a team that others do not trust"
    return ""


def _meant(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that some IPv6 ones stand for."""
    if isinstance(address, IPv4Address) or address == _LOOPBACK_6:  # `is_loopback` is also ::ffff:127.0.0.1 from Python 3.13 on
        return address
    if any(address in network for network in _STAND_FOR_IPV4):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


@cache
def _trusted() -> ssl.SSLContext:
    return ssl.create_default_context()


@cache
def _nobody() -> ssl.SSLContext:
    """Plain HTTP needs no authorities, and reading them costs 20 ms."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
