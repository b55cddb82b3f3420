"""A live server with two teams, and each of the people that a route may meet."""

from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.operate.control.live_server import LiveServer

WHO = {
    "ruth": ("", ""),  # an admin of the platform
    "rita": ("red", "admin"),
    "rob": ("red", "member"),
    "ron": ("red", "member"),
    "rey": ("red", "viewer"),
    "bea": ("blue", "admin"),
    "noa": ("", ""),  # in no team
}


@dataclass
class Teams:
    """tokens: of scope admin, by user."""

    server: LiveServer
    tokens: dict[str, str] = field(default_factory=dict)

    def http(self, user: str) -> httpx.Client:
        return self.server.http(self.tokens[user])

    def token(self, user: str, **asked: Any) -> str:
        """Another one of theirs."""
        with self.server.http() as http:
            answer = http.post("/tokens", json={"name": "test", "user": user, **asked})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    def submit(self, user: str, **spec: Any) -> str:
        with self.http(user) as http:
            answer = http.post("/jobs", json={"spec": {"entrypoint": "true", **spec}})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])


def two_teams(server: LiveServer) -> Teams:
    """Makes them by the home's own token."""
    teams = Teams(server)
    with server.http() as http:
        for team in ("red", "blue"):
            assert http.post("/teams", json={"team": team, "trusting": True}).status_code == 201
        for user, (team, role) in WHO.items():
            assert http.post("/users", json={"user": user, "platform": user == "ruth"}).status_code == 201
            if team:
                assert http.put(f"/teams/{team}/members/{user}", json={"role": role}).status_code == 200
    teams.tokens = {user: teams.token(user, scope="admin") for user in WHO}
    return teams
