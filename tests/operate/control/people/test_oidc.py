"""Logins by OpenID: a good id token lets in whom it means, and each forged, foreign, old or repeated one nobody."""

import base64
import hashlib
import hmac
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import RSAKey

from phalanx.client import Client
from phalanx.client.oidc import log_in
from phalanx.core.errors import Conflict, RateLimited, SetupError, SpecError, StoreUnavailable, Unauthorized, WaitTimeout
from phalanx.core.oidc import NONCE_MS, OidcConfig, load_oidc
from phalanx.operate.control.auth import digest
from phalanx.operate.control.people import audit, oidc
from phalanx.operate.control.people.accounts import Accounts, logged_in
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.people.oidc import KEYS_AGAIN_MS, Identity, Nonces, Provider
from phalanx.operate.control.store import Store
from tests.operate.control.live_server import LiveServer
from tests.operate.control.people.issuer import CLIENT, Issuer, serving

NOW_S = 1_800_000_000
NOTE = Note(at_ms=5, who="ada", token="", what="user.login", target="ada", address="127.0.0.1")


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    made = Issuer()
    made.url = "https://id.example.org"
    return made


@pytest.fixture
def provider(issuer: Issuer) -> Provider:
    config = OidcConfig(issuer=issuer.url, client_id=CLIENT)
    return Provider(config, lambda url: json.dumps(issuer.document(url.removeprefix(issuer.url))).encode())


def test_a_good_token_says_who_it_means(issuer: Issuer, provider: Provider) -> None:
    who = provider.identity(issuer.token("n", NOW_S), "n", NOW_S * 1000)
    assert who == Identity(issuer.url, "s-1", "ada-lovelace", frozenset({"hoplites"}))
    for late_s in (359, -59):
        assert provider.identity(issuer.token("n", NOW_S), "n", (NOW_S + late_s) * 1000) == who, "clocks differ by a minute"
    both = issuer.token("n", NOW_S, aud=[CLIENT, "other"], azp=CLIENT)
    assert provider.identity(both, "n", NOW_S * 1000) == who


def none_token(issuer: Issuer) -> str:
    head, body, _ = issuer.token("n", NOW_S).split(".")
    head = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    return f"{head}.{body}."


def shared_key_token(issuer: Issuer) -> str:
    """Signed with the public key as if it were a shared one."""
    body = issuer.token("n", NOW_S).split(".")[1]
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').rstrip(b"=").decode()
    mac = hmac.new(issuer.key.as_pem(private=False), f"{head}.{body}".encode(), hashlib.sha256).digest()
    return f"{head}.{body}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def own_key_token(issuer: Issuer) -> str:
    """Brings the key that it is to be tried with."""
    key = RSAKey.generate_key(2048)
    return issuer.token("n", NOW_S, key=key, header={"jwk": key.as_dict(private=False)})


BAD: dict[str, Callable[[Issuer], str]] = {
    "another's": lambda i: i.token("n", NOW_S, aud="another"),
    "for several": lambda i: i.token("n", NOW_S, aud=[CLIENT, "another"]),
    "for several, given to another": lambda i: i.token("n", NOW_S, aud=[CLIENT, "another"], azp="another"),
    "without audience": lambda i: i.token("n", NOW_S, aud=None),
    "expired": lambda i: i.token("n", NOW_S - 361),
    "without end": lambda i: i.token("n", NOW_S, exp=None),
    "of the future": lambda i: i.token("n", NOW_S, iat=NOW_S + 61),
    "not yet good": lambda i: i.token("n", NOW_S, nbf=NOW_S + 61),
    "of another issuer": lambda i: i.token("n", NOW_S, iss="https://evil.example.org"),
    "of another login": lambda i: i.token("other", NOW_S),
    "of no login": lambda i: i.token(None, NOW_S),
    "of nobody": lambda i: i.token("n", NOW_S, sub=""),
    "of no text": lambda i: i.token("n", NOW_S, sub=7),
    "without a name": lambda i: i.token("n", NOW_S, preferred_username="***"),
    "unsigned": none_token,
    "signed with the public key": shared_key_token,
    "with a key of its own": own_key_token,
    "by another key": lambda i: i.token("n", NOW_S, key=RSAKey.generate_key(2048)),
    "changed": lambda i: i.token("n", NOW_S)[:-4] + "AAAA",
    "no token": lambda i: "a.b.c",
    "empty": lambda i: "",
    "endless": lambda i: "a" * 100_000,
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_token_lets_nobody_in(issuer: Issuer, provider: Provider, kind: str) -> None:
    token = BAD[kind](issuer)
    with pytest.raises(Unauthorized) as refused:
        provider.identity(token, "n", NOW_S * 1000)
    assert not token or token not in str(refused.value)


def test_keys_are_asked_for_again_when_they_change_and_not_for_every_forgery(issuer: Issuer, provider: Provider) -> None:
    before = issuer.key_asked
    provider.identity(issuer.token("n", NOW_S), "n", NOW_S * 1000)
    old, issuer.key = issuer.key, RSAKey.generate_key(2048, {"kid": "two"}, auto_kid=False)
    token = issuer.token("n", NOW_S, header={"kid": "two"})
    for _ in range(3):
        with pytest.raises(Unauthorized):
            provider.identity(token, "n", NOW_S * 1000)
    assert issuer.key_asked == before + 1
    later_ms = NOW_S * 1000 + KEYS_AGAIN_MS
    assert provider.identity(token, "n", later_ms).subject == "s-1"
    with pytest.raises(Unauthorized):
        provider.identity(issuer.token("n", NOW_S, key=old), "n", later_ms)
    issuer.key = old


def test_a_provider_that_is_another_or_leads_elsewhere_is_not_believed(issuer: Issuer) -> None:
    config = OidcConfig(issuer=issuer.url, client_id=CLIENT)
    elsewhere = {"issuer": issuer.url, "jwks_uri": "http://evil.example.org/keys"}
    for said in (b'{"issuer": "https://evil.example.org"}', json.dumps(elsewhere).encode(), b"[]", b"<html>"):
        with pytest.raises(StoreUnavailable):
            Provider(config, partial(_always, said)).identity(issuer.token("n"), "n", NOW_S * 1000)


def _always(said: bytes, _: str) -> bytes:
    return said


def test_a_nonce_is_good_once_and_for_ten_minutes() -> None:
    nonces = Nonces()
    first, second = nonces.make(0), nonces.make(0)
    nonces.use(first, 10)
    for bad, at_ms in ((first, 20), (second, NONCE_MS), (second, -1), (second[:-1] + "x", 5), ("", 5), ("1.2.3", 5)):
        with pytest.raises(Unauthorized):
            nonces.use(bad, at_ms)
    with pytest.raises(Unauthorized):
        Nonces().use(second, 5)
    nonces.use(second, NONCE_MS - 1)


def test_used_nonces_are_forgotten_once_they_are_over_and_are_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oidc, "USED_MAX", 3)
    nonces = Nonces()
    for at_ms in (0, 1, 2):
        nonces.use(nonces.make(at_ms), at_ms)
    late = nonces.make(3)
    with pytest.raises(RateLimited):
        nonces.use(late, 3)
    nonces.use(late, NONCE_MS)
    assert len(nonces._used) == 3, "the first is over, the two after it are not"
    with pytest.raises(Unauthorized):
        nonces.use(late, NONCE_MS + 1)


@pytest.fixture
def accounts(tmp_path: Path) -> Iterator[Accounts]:
    store = Store(tmp_path / "phalanx.db")
    store.take_lead()
    made = Accounts(store, lambda: NOW_S * 1000)
    for team in ("red", "blue", "green"):
        made.add_team(1, team, NOTE)
    yield made
    store.close()


CONFIG = OidcConfig(
    issuer="https://id.example.org", client_id=CLIENT, platform_groups=("strategoi",),
    teams={"hoplites": {"red": "member"}, "captains": {"red": "admin", "blue": "viewer", "gone": "admin"}},
)  # fmt: skip
ADA = Identity(CONFIG.issuer, "s-1", "ada", frozenset({"hoplites", "unknown"}))


def roles(accounts: Accounts, who: Identity) -> tuple[dict[str, str], bool]:
    token = logged_in(accounts, 1, who, CONFIG, NOTE).token
    person = accounts.directory().person(digest(token), NOW_S * 1000)
    return dict(person.roles), accounts.directory().users[person.user][0]


def test_groups_give_roles_at_each_login_and_take_them(accounts: Accounts) -> None:
    assert roles(accounts, ADA) == ({"red": "member"}, False)
    accounts.set_role(1, "green", "ada", "viewer", NOTE)
    both = replace(ADA, groups=frozenset({"captains", "hoplites", "strategoi"}), name="renamed")
    config_all = replace(CONFIG, given_scope="admin")
    token = logged_in(accounts, 1, both, config_all, NOTE)
    person = accounts.directory().person(digest(token.token), NOW_S * 1000)
    assert (person.user, person.roles, person.rules) == ("ada", {"red": "admin", "blue": "viewer", "green": "viewer"}, True)
    assert token.view.expires_ms == NOW_S * 1000 + 12 * 3_600_000
    assert roles(accounts, replace(ADA, groups=frozenset())) == ({"green": "viewer"}, False), "what somebody gave stays"


def test_what_a_login_changes_has_rows_of_its_own(accounts: Accounts) -> None:
    def rows() -> list[tuple[str, str, str]]:
        found = audit.page(accounts._store, {}, 0, seen[0], 100, newest=False)
        seen[0] = found[-1].seq
        assert {one.outcome for one in found} == {"done"}
        return [(one.what, one.on, one.detail) for one in found if one.what.startswith(("user.add", "user.plat", "team."))]

    seen = [0]
    rows()
    roles(accounts, ADA)
    assert rows() == [("user.add", "ada", "by its first login"), ("team.member", "red", "ada: member, by groups")]
    roles(accounts, ADA)
    assert rows() == [], "nothing changed"
    roles(accounts, replace(ADA, groups=frozenset({"captains", "strategoi"})))
    gains = [("team.member", "blue", "ada: viewer, by groups"), ("team.member", "red", "ada: admin, by groups")]
    assert rows() == [*gains, ("user.platform", "ada", "an admin, by groups")]
    roles(accounts, replace(ADA, groups=frozenset()))
    losses = [("team.unmember", "blue", "ada, by groups"), ("team.unmember", "red", "ada, by groups")]
    assert rows() == [*losses, ("user.platform", "ada", "no admin, by groups")]


def test_a_name_that_is_anothers_is_not_taken_over(accounts: Accounts) -> None:
    accounts.add_user(1, "eve", False, NOTE)
    for name in ("eve", "admin"):
        with pytest.raises(Conflict):
            logged_in(accounts, 1, replace(ADA, name=name), CONFIG, NOTE)
    roles(accounts, ADA)
    with pytest.raises(Conflict):
        logged_in(accounts, 1, replace(ADA, subject="s-2"), CONFIG, NOTE)
    accounts.remove_user(1, "ada", NOTE)
    with pytest.raises(Unauthorized, match="removed"):
        logged_in(accounts, 1, ADA, CONFIG, NOTE)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("issuer: http://id.example.org\nclient_id: c", "issuer"),
        ("issuer: https://id.example.org", "client_id"),
        ("issuer: https://id.example.org\nclient_id: c\nclient: d", "client"),
        ("issuer: https://id.example.org\nclient_id: c\nteams: {g: {red: root}}", "teams"),
        ("issuer: https://id.example.org\nclient_id: c\nteams: {g: {'../x': admin}}", "teams.g"),
        ("issuer: https://id.example.org\nclient_id: c\ngiven_lifetime: soon", "given_lifetime"),
        ("[]", "oidc.yaml"),
    ],
)
def test_a_configuration_that_cannot_be_is_named(tmp_path: Path, text: str, field: str) -> None:
    assert load_oidc(tmp_path) is None
    (tmp_path / "oidc.yaml").write_text(text)
    with pytest.raises(SpecError) as refused:
        load_oidc(tmp_path)
    assert field in refused.value.field


def test_without_the_extra_it_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(SetupError, match=r"phalanx\[oidc\]"):
        Provider(CONFIG, lambda _: b"")
    monkeypatch.setitem(sys.modules, "authlib.integrations.httpx_client", None)
    with pytest.raises(SetupError, match=r"phalanx\[oidc\]"):
        log_in("http://127.0.0.1:1", lambda _: None)


def test_a_login_through_a_browser_ends_with_a_token(tmp_path: Path) -> None:
    live = LiveServer(tmp_path / "home")
    live.home.mkdir()
    with serving(Issuer()) as issuer:
        (live.home / "oidc.yaml").write_text(f"issuer: {issuer.url}\nclient_id: {CLIENT}\nteams: {{hoplites: {{red: member}}}}\n")
        live.start()
        with live.http() as http:
            http.post("/teams", json={"team": "red", "trusting": True})
        browsers: list[threading.Thread] = []

        def browser(url: str) -> None:
            def visit() -> None:
                callback = httpx.get(url, trust_env=False).headers["location"]
                stale = callback.partition("state=")[0] + "state=of-another-login"
                assert httpx.get(stale, trust_env=False).status_code == 400, "an answer to another login is passed over"
                assert httpx.get(callback, trust_env=False).status_code == 200

            browsers.append(threading.Thread(target=visit))
            browsers[0].start()

        token = log_in(live.url, browser, wait_s=60.0)
        browsers[0].join()
        with Client(live.url, token) as client:
            who = client.people.whoami()
        assert (who.user, who.teams, who.scope, who.platform) == ("ada-lovelace", {"red": "member"}, "submit", False)
        _refuse_repeats(live, issuer)
        with pytest.raises(WaitTimeout):
            log_in(live.url, lambda _: None, wait_s=0.05)
    rows = live.get("/audit", what="user")
    assert [(row["what"], row["by"]) for row in rows] == [
        ("user.add", "ada-lovelace"), ("user.login", "ada-lovelace"), ("user.login", "ada-lovelace"),
    ]  # fmt: skip
    assert live.end() == 0, live.words()
    assert "Traceback" not in live.words() and token not in live.words()


def _refuse_repeats(live: LiveServer, issuer: Issuer) -> None:
    with live.http("none") as http:
        nonce = http.get("/oidc").json()["nonce"]
        body: dict[str, Any] = {"id_token": issuer.token(nonce, int(time.time())), "nonce": nonce}
        first = http.post("/oidc/login", json=body)
        assert (first.status_code, first.headers["cache-control"]) == (201, "no-store")
        assert http.post("/oidc/login", json=body).status_code == 401, "a login is good once"
        other = http.get("/oidc").json()["nonce"]
        assert http.post("/oidc/login", json={**body, "nonce": other}).status_code == 401, "and for its own nonce"
        assert http.post("/oidc/login", json={**body, "nonce": "made-up"}).status_code == 401
