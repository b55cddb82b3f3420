"""Logging in with a browser elsewhere: by a code, only where the platform allows it, and once for each token."""

import base64
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from joserfc.jwk import ECKey

from phalanx.client import Client
from phalanx.client.oidc_device import log_in_elsewhere
from phalanx.core.errors import SetupError, Unauthorized, WaitTimeout
from phalanx.core.oidc import OidcConfig
from phalanx.operate.control.people.oidc import DEVICE_S, LEEWAY_S, Nonces, Provider
from tests.operate.control.live_server import LiveServer
from tests.operate.control.people.issuer import CLIENT, Issuer, serving
from tests.operate.control.people.test_oidc import NOW_S, issuer, provider

__all__ = ["issuer", "provider"]


class Patience:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def clock(self) -> float:
        return sum(self.slept)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, Issuer]]:
    """A platform that lets devices in, and its provider."""
    server = LiveServer(tmp_path_factory.mktemp("device") / "home")
    server.home.mkdir()
    with serving(Issuer()) as provider:
        teams = "teams: {hoplites: {red: member}}"
        (server.home / "oidc.yaml").write_text(f"issuer: {provider.url}\nclient_id: {CLIENT}\n{teams}\ndevice_logins: true\n")
        server.start()
        with server.http() as http:
            http.post("/teams", json={"team": "red", "trusting": True})
        yield server, provider
        assert server.end() == 0, server.words()
        assert "Traceback" not in server.words()


def test_a_code_that_is_typed_elsewhere_lets_in(live: tuple[LiveServer, Issuer]) -> None:
    """Also a provider that names the nonce; and one that asks for patience, and is away once, gets it."""
    server, provider = live
    for names_nonce, answers, slept in (
        (False, ["authorization_pending", "slow_down", "authorization_pending"], [2.0, 2.0, 7.0, 7.0]),
        (True, [], [2.0]),
    ):
        provider.names_nonce, provider.answers = names_nonce, answers
        shown: list[tuple[str, str]] = []
        patience = Patience()
        token = log_in_elsewhere(server.url, lambda *said, shown=shown: shown.append(said), patience.sleep, patience.clock)
        assert (shown, patience.slept) == ([(f"{provider.url}/type", "WDJB-MJHT")], slept)
        with Client(server.url, token) as client:
            who = client.people.whoami()
        assert (who.user, who.teams, who.scope) == ("ada-lovelace", {"red": "member"}, "submit")
    assert token not in server.words()


@pytest.mark.parametrize(
    ("answers", "error"),
    [(["access_denied"], Unauthorized), (["expired_token"], WaitTimeout), (["authorization_pending"] * 1_000, WaitTimeout)],
)
def test_who_types_nothing_or_is_refused_is_told(
    live: tuple[LiveServer, Issuer], answers: list[str], error: type[Exception]
) -> None:
    server, provider = live
    provider.answers, patience, asked = list(answers), Patience(), provider.device_asked
    with pytest.raises(error):
        log_in_elsewhere(server.url, lambda *_: None, patience.sleep, patience.clock)
    assert patience.clock() <= 600
    assert provider.device_asked - asked <= 300, "no oftener than the provider allows"
    provider.answers.clear()


def test_a_devices_token_is_good_once_and_no_other_logins_token_is_a_devices(live: tuple[LiveServer, Issuer]) -> None:
    server, provider = live
    with server.http("none") as http:

        def login(id_token: str, **more: object) -> int:
            nonce = http.get("/oidc").json()["nonce"]
            return http.post("/oidc/login", json={"id_token": id_token, "nonce": nonce, **more}).status_code

        bare = provider.token(None)
        assert login(bare) == 401, "who does not say that it is a device needs the nonce"
        assert login(bare, device=True) == 201
        assert login(bare, device=True) == 401, "good once, whatever the nonce"
        of_browser = provider.token("the-nonce-of-a-browsers-login")
        assert login(of_browser, device=True) == 401
        assert login(provider.token(None, int(time.time()) - DEVICE_S - LEEWAY_S), device=True) == 401
        assert login(provider.token(None, aud="other"), device=True) == 401
        assert login(bare, device=1) == 422


def test_where_it_is_not_allowed_nobody_is_sent_anywhere(tmp_path: Path) -> None:
    server = LiveServer(tmp_path / "home")
    server.home.mkdir()
    with serving(Issuer()) as provider:
        (server.home / "oidc.yaml").write_text(f"issuer: {provider.url}\nclient_id: {CLIENT}\n")
        server.start()
        with pytest.raises(SetupError, match="device_logins: true"):
            log_in_elsewhere(server.url, lambda *_: pytest.fail("shown"))
        with server.http("none") as http:
            nonce = http.get("/oidc").json()["nonce"]
            answer = http.post("/oidc/login", json={"id_token": provider.token(None), "nonce": nonce, "device": True})
        assert (answer.status_code, answer.json()["field"]) == (401, "device")
        assert provider.devices == {}
    assert server.end() == 0


def test_a_token_without_a_nonce_is_good_while_it_is_young(issuer: Issuer, provider: Provider) -> None:
    for age_s in (0, -LEEWAY_S, DEVICE_S):
        assert provider.identity(issuer.token(None, NOW_S), "n", (NOW_S + age_s) * 1000, device=True).subject == "s-1"
    young = issuer.token(None, NOW_S, exp=NOW_S + 10_000)
    with pytest.raises(Unauthorized, match="older than"):
        provider.identity(young, "n", (NOW_S + DEVICE_S + 1) * 1000, device=True)
    with pytest.raises(Unauthorized, match="nonce"):
        provider.identity(issuer.token("m", NOW_S), "n", NOW_S * 1000, device=True)
    assert not OidcConfig(issuer="https://id", client_id="c").device_logins


def test_what_was_spent_is_known_for_longer_than_it_is_good() -> None:
    nonces, last_ms = Nonces(), (DEVICE_S + 2 * LEEWAY_S) * 1000
    nonces.spend("token.x", 0)
    for now_ms in (0, last_ms):
        with pytest.raises(Unauthorized, match="was used"):
            nonces.spend("token.x", now_ms)
    nonces.spend("another.x", last_ms)


def test_another_signature_of_the_same_token_makes_it_no_other(issuer: Issuer, provider: Provider) -> None:
    """Of ES256: with n - s in place of s it is as good, and nobody needs the key for that."""
    key = ECKey.generate_key("P-256", {"kid": "two"}, auto_kid=False)
    issuer.more_keys = [key]
    token = issuer.token(None, NOW_S, key, {"alg": "ES256", "kid": "two"})
    signed, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature + "==")
    n = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    other_s = (n - int.from_bytes(raw[32:], "big")).to_bytes(32, "big")
    other = f"{signed}.{base64.urlsafe_b64encode(raw[:32] + other_s).rstrip(b'=').decode()}"
    nonces = Nonces()
    for one in (token, other):
        assert provider.identity(one, "n", NOW_S * 1000, device=True).subject == "s-1"
    nonces.spend(token, 0)
    with pytest.raises(Unauthorized, match="was used"):
        nonces.spend(other, 0)
