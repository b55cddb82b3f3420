"""The agent's HTTP exchanges with the control plane, beside its WebSocket: code, secrets, artifacts."""

import ssl
from collections.abc import Mapping

import httpx


def open_http(url: str, timeout: httpx.Timeout, headers: Mapping[str, str] | None = None) -> httpx.AsyncClient:
    """A client for one exchange. Raises httpx.InvalidURL."""
    # Reading the CA bundle costs 14 ms, for nothing on plain HTTP; this context trusts nobody, so it fails closed.
    verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if httpx.URL(url).scheme == "http" else True
    return httpx.AsyncClient(base_url=url, timeout=timeout, trust_env=False, headers=headers, verify=verify)
