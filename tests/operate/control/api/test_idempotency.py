"""A submit that is sent again makes no second job."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.operate.control.served import HOST, Served, served

BODY: dict[str, Any] = {"spec": {"name": "once", "entrypoint": "true"}}


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "home") as one:
        yield one


def submit(one: Served, header: str = "", **more: Any) -> Any:
    headers = {"Idempotency-Key": header} if header else {}
    return one.http().post("/api/v1/jobs", json={**BODY, **more}, headers=headers)


def test_the_key_in_the_header_is_the_key_in_the_body(one: Served) -> None:
    first = submit(one, "k-1")
    assert first.status_code == 201
    assert first.headers["location"] == f"/api/v1/jobs/{first.json()['id']}"
    for again in (submit(one, "k-1"), submit(one, '"k-1"'), submit(one, key="k-1"), submit(one, "k-1", key="k-1")):
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
    assert submit(one, "k-2").json()["id"] != first.json()["id"]
    assert submit(one).json()["id"] != submit(one).json()["id"]


def test_another_job_with_the_same_key_is_a_conflict(one: Served) -> None:
    submit(one, "k-1")
    answer = submit(one, "k-1", spec={"name": "other", "entrypoint": "true"})
    assert (answer.status_code, answer.json()["title"], answer.json()["field"]) == (409, "Conflict", "key")
    assert "use a new key for each job" in answer.json()["fix"]


def test_two_keys_are_one_too_many(one: Served) -> None:
    answer = submit(one, "k-1", key="k-2")
    assert (answer.status_code, answer.json()["field"], answer.json()["value"]) == (422, "Idempotency-Key", "k-1")
    assert submit(one, "k" * 258).status_code == 422
    assert one.bench.world.jobs == {}


def test_a_key_outlives_the_control_plane(one: Served) -> None:
    first = submit(one, "k-1").json()["id"]
    one.bench.restart()
    assert one.bench.submit_as(BODY["spec"], "k-1") == first


def test_those_of_one_moment_make_one_job(one: Served) -> None:
    async def all_at_once() -> list[httpx.Response]:
        transport = httpx.ASGITransport(one.app)
        headers = {"Authorization": f"Bearer {one.admin}", "Idempotency-Key": "k-1"}
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=headers) as http:
            return await asyncio.gather(*(http.post("/api/v1/jobs", json=BODY) for _ in range(20)))

    answers = asyncio.run(all_at_once())
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == len(one.bench.world.jobs) == 1


def test_a_repeat_is_answered_though_what_the_job_names_is_gone(one: Served) -> None:
    http, spec = one.http(), {**BODY["spec"], "secrets": ["TOKEN"]}
    assert http.put("/api/v1/secrets/TOKEN", content=b"a-long-value").status_code == 204
    first = submit(one, "k-1", spec=spec).json()["id"]
    assert http.delete("/api/v1/secrets/TOKEN").status_code == 204
    assert submit(one, "k-1", spec=spec).json()["id"] == first
    assert submit(one, "k-2", spec=spec).status_code == 422
