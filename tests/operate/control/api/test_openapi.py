"""The OpenAPI document is kept: every route says what it takes and what it answers, and the real application does as it says.

Requests are drawn from the document by schemathesis, with one seed: right ones, wrong ones, and each of the other methods.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from phalanx.operate.control.api.openapi import PROBLEM
from phalanx.operate.control.api.openapi_kinds import EXAMPLES
from tests.operate.control.served import Served, served

IN_LONG: Final = bool(os.environ.get("PHALANX_SOAK"))
DRAWN: Final = 100 if IN_LONG else 3
"""Requests of each kind for each route, beside those that the document's limits and examples make by themselves."""
SEED: Final = 8
BEYOND_SCHEMA: Final = (
    "submit",
    "plan",
    "set_policy",
    "put_blob",
    "put_secret",
    "get_secret",
    "name_organisation",
    "make_token",
    "ledger",
    "usage",
    "steps",
    "request_traces",
    "chaos",
)
"""May refuse (422) what their schema allows: fields that must fit each other, a hash, one's own team, another's cursor."""
ACCEPTED: Final = ["2xx", "401", "404", "409", "412", "422"]
STREAMS: Final = ("stream_events", "stream_events_of_job", "stream_logs")
"""Of no request that can be answered does one end by itself: see test_streams."""
SPARED: Final = () if IN_LONG else ({"include-operation-id": "plan", "phases": {"coverage": {"enabled": False}}},)
"""It takes the same spec as a submit, of which 800 requests are made."""
OF_NODES: Final = ("membership", "secrets_of", "has_blob", "get_blob", "put_blob")
Document = Mapping[str, Any]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("openapi") / "home") as one:
        fill(one)
        yield one


def fill(one: Served) -> None:
    """Jobs of all kinds of state, with what they leave; one measured what is no number."""
    running = one.run("ran")
    one.write_log(running, b"one line\n" * 20)
    one.measure(running, 5)
    one.measure(running, 1, rank=1, loss=float("nan"))
    one.keep_file(running, "plots/loss.png", b"not really")
    one.end(one.run("failed"), 1)
    one.end(one.run("done"))
    one.submit("waits", "8")


@pytest.fixture(scope="module")
def document(one: Served) -> Document:
    found: Document = one.app.openapi()
    return found


def operations(document: Document) -> list[tuple[str, str, Document]]:
    return [(method, path, told) for path, of_path in document["paths"].items() for method, told in of_path.items()]


def run(one: Served, token: str, only: tuple[str, ...] = ()) -> tuple[int, list[str]]:
    """How many requests were made, and everything in which the application did otherwise than its document says."""
    beyond = [*BEYOND_SCHEMA, *lists(one.app.openapi())]
    loose = {"include-operation-id": beyond, "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}}}
    headers = {"Authorization": f"Bearer {token}"}
    drawn = {"max-examples": DRAWN, "deterministic": True, "database": "none", "no-shrink": True}
    told = {"seed": SEED, "headers": headers, "generation": drawn, "operations": [loose, *SPARED]}
    config = SchemathesisConfig.from_dict({**told, "phases": {"stateful": {"enabled": False}}})
    schema = schemathesis.openapi.from_dict(part_of(one.app.openapi(), only), config=config)
    schema.app = one.app
    count, wrong = 0, []
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            wrong.append(repr(event))
        if isinstance(event, events.ScenarioFinished):
            count += len(event.recorder.interactions)
            wrong += failures(event)
    return count, wrong


def part_of(document: Document, only: tuple[str, ...]) -> dict[str, Any]:
    """With these operations alone, or all that end."""
    every = {told["operationId"] for _, _, told in operations(document)}
    paths = {
        path: {method: told for method, told in of_path.items() if told["operationId"] in (only or every - set(STREAMS))}
        for path, of_path in document["paths"].items()
    }
    return {**document, "paths": {path: of_path for path, of_path in paths.items() if of_path}}


def lists(document: Document) -> list[str]:
    """Operations that take a cursor or a tag."""
    taken = {told["operationId"]: {one["name"] for one in told.get("parameters", ())} for _, _, told in operations(document)}
    return [name for name, parameters in taken.items() if parameters & {"cursor", "If-Match"}]


def failures(event: events.ScenarioFinished) -> list[str]:
    found = (node.failure_info for nodes in event.recorder.checks.values() for node in nodes)
    return [f"{event.recorder.label}: {one.failure.title}: {one.failure.message}\n{one.code_sample}" for one in found if one]


def test_the_application_does_as_its_document_says(one: Served) -> None:
    count, wrong = run(one, one.admin)
    assert not wrong, "\n\n".join(wrong[:10])
    assert count > 500


def test_so_it_does_for_the_agent_of_a_node(one: Served) -> None:
    count, wrong = run(one, one.node, OF_NODES)
    assert not wrong, "\n\n".join(wrong[:10])
    assert count > 20


def test_a_route_that_does_otherwise_is_found(one: Served) -> None:
    """What is held against the document could be held against nothing."""
    told = one.app.openapi()["paths"]["/api/v1/jobs/{job}"]["get"]["responses"]
    kept = told.pop("404")
    try:
        _, wrong = run(one, one.admin, ("get_job",))
    finally:
        told["404"] = kept
    assert any("Undocumented status code" in text for text in wrong)


def test_every_operation_has_a_name_a_sentence_and_its_refusals(document: Document) -> None:
    names = [told["operationId"] for _, _, told in operations(document)]
    assert len(names) == len(set(names)) >= 40
    for method, path, told in operations(document):
        at = f"{method} {path}"
        assert told["description"], at
        answers = told["responses"]
        assert {"400", "401", "403", "422", "429", "503"} <= answers.keys(), at
        assert ("{" in path) <= ("404" in answers), at
        assert ("requestBody" in told) <= ("413" in answers), at
        for code, answer in answers.items():
            assert (int(code) >= 400) == (list(answer.get("content", {})) == [PROBLEM]), f"{at} {code}"


def test_every_operation_says_which_token_it_wants(document: Document) -> None:
    wanted = {told["operationId"]: [one["bearer"] for one in told["security"]] for _, _, told in operations(document)}
    assert {json.dumps(one) for one in wanted.values()} == {
        "[]", "[[]]", '[["read"]]', '[["submit"]]', '[["admin"]]', '[["node"]]', '[["read"], ["node"]]', '[["join"]]',
    }  # fmt: skip
    assert (wanted["get_job"], wanted["submit"], wanted["redeliver"]) == ([["read"]], [["submit"]], [["submit"]])
    assert [name for name, roles in wanted.items() if not roles] == ["begin_oidc", "end_oidc"]


def test_every_parameter_has_its_limits(document: Document) -> None:
    """Text a longest length or a pattern, numbers both ends."""
    for method, path, told in operations(document):
        for parameter in told.get("parameters", ()):
            for schema in parameter["schema"].get("anyOf", [parameter["schema"]]):
                limits = {"string": {"maxLength"}, "integer": {"minimum", "maximum"}}.get(schema["type"], set())
                assert limits <= schema.keys() or schema.keys() & {"pattern", "enum"}, f"{method} {path}: {parameter['name']}"


def test_every_body_has_an_example(document: Document) -> None:
    bodies = [told["requestBody"]["content"] for _, _, told in operations(document) if "requestBody" in told]
    named = {body["application/json"]["schema"]["$ref"].rpartition("/")[2] for body in bodies if "application/json" in body}
    assert named == set(EXAMPLES)


def test_another_method_is_told_all_that_the_path_has(one: Served) -> None:
    answer = one.http().delete("/api/v1/jobs")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, POST"
    assert answer.headers["content-type"] == PROBLEM
    assert answer.json()["fix"] == "this path has GET, POST"


def test_a_flag_is_true_or_false(one: Served) -> None:
    answer = one.http().post("/api/v1/gc", json={"dry_run": 0})
    assert (answer.status_code, answer.json()["field"]) == (422, "dry_run")


def test_a_log_ends_where_it_ends_however_far_somebody_asks(one: Served) -> None:
    page = one.http().get("/api/v1/jobs/ran-1/logs", params={"offset": 2**60}).json()
    assert (page["text"], page["next_offset"]) == ("", 2**60)


def test_what_is_no_number_is_text_in_the_document_too(one: Served, document: Document) -> None:
    steps = one.http().get("/api/v1/jobs/ran-1/steps", params={"rank": 1}).json()["steps"]
    assert steps[0]["loss"] == "NaN"
    told = document["components"]["schemas"]["StepRecord"]["properties"]["loss"]
    assert {"type": "string", "enum": ["NaN", "Infinity", "-Infinity"]} in told["anyOf"]


def test_the_document_itself_wants_a_token(one: Served) -> None:
    assert one.http("").get("/openapi.json").status_code == 401


OPEN: Final = ("JoinRequest",)
"""Bodies that may have keys which we do not know: of nodes of another version."""


def test_a_misspelt_key_is_refused_in_every_body_that_people_send(one: Served) -> None:
    """Else a change with a misspelt `dry_run` is made, and a token with a misspelt `team` is for all of them."""
    with one.http() as http:
        document = http.get("/openapi.json").json()
        bodies = {
            (method, path): operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
            if "application/json" in operation.get("requestBody", {}).get("content", {})
            and "$ref" in operation["requestBody"]["content"]["application/json"]["schema"]
        }
        assert len(bodies) > 10
        schemas = document["components"]["schemas"]
        known = {name for name in bodies.values() if name not in OPEN}
        assert {name for name in known if schemas[name].get("additionalProperties") is not False} == set()
        answer = http.post("/api/v1/tokens", json={"name": "laptop", "teem": "red"})
    assert (answer.status_code, "teem" in answer.text) == (422, True)
