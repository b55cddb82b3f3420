"""The clusters file: what is in it, and what to change where it cannot be read."""

from pathlib import Path
from typing import Any

import pytest

from phalanx.core.clusters import Cluster
from phalanx.core.clusters_parse import chosen, load_clusters, parse_clusters
from phalanx.core.errors import NotFound, SpecError
from phalanx.core.yaml_text import read_yaml

TEXT = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text(encoding="utf-8").partition("## Several clusters")[2]
LAB: dict[str, Any] = {"home": "."}


def test_the_example_in_the_text_is_a_clusters_file(tmp_path: Path) -> None:
    (tmp_path / "clusters.yaml").write_text(TEXT.partition("```yaml\n")[2].partition("```")[0])
    found = load_clusters(tmp_path / "clusters.yaml")
    assert found.clusters["lab"] == Cluster(home=str(tmp_path))
    cloud = found.clusters["cloud"]
    assert (cloud.token_file, cloud.price, cloud.burst, cloud.bandwidth_bytes) == (f"{tmp_path}/cloud.token", 3.2, True, 2 * 10**9)
    assert (found.hour_of_delay, found.egress, found.burst_after_ms) == (1.0, 90.0, 3_600_000)


def test_the_example_beside_the_policy_is_one_too() -> None:
    found = load_clusters(Path(__file__).parents[2] / "examples" / "sharing" / "clusters.yaml")
    assert (*found.clusters, found.clusters["cloud"].speed) == ("lab", "cloud", 0.8)


def test_names_are_asked_for_once_or_all() -> None:
    clusters = parse_clusters({"clusters": {"lab": LAB, "cloud": LAB}})
    assert chosen(clusters, "all") == ("lab", "cloud")
    assert chosen(clusters, "cloud, lab,cloud") == ("cloud", "lab")
    with pytest.raises(SpecError, match="did you mean 'cloud'"):
        chosen(clusters, "lab,clout")


def test_no_file_is_told_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no such file; write one, such as clusters:"):
        load_clusters(tmp_path / "clusters.yaml")


@pytest.mark.parametrize("entry", ["home: '~nobody-here/x'", "url: 'https://h', token_file: '~nobody-here/t'"])
def test_a_path_of_a_user_that_is_not_there_is_named(tmp_path: Path, entry: str) -> None:
    (tmp_path / "clusters.yaml").write_text(f"clusters: {{a: {{{entry}}}}}")
    with pytest.raises(SpecError, match="user that this machine does not know"):
        load_clusters(tmp_path / "clusters.yaml")


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        ("[]", "clusters.yaml", "write a mapping"),
        ("{}", "clusters", "name 1 to 100"),
        ("clusters: {all: {home: a}}", "clusters", "'all' stands for every cluster"),
        ("clusters: {Lab: {home: a}}", "clusters", "use lower-case letters"),
        ("clusters: {a: {}}", "clusters.a", "give either home"),
        ("clusters: {a: {home: a, url: 'http://h'}}", "clusters.a", "give either home"),
        ("clusters: {a: {url: 'http://h'}}", "clusters.a.token_file", "name a file with a token"),
        ("clusters: {a: {home: a, token_file: t}}", "clusters.a.token_file", "leave it out: a home has its own token"),
        ("clusters: {a: {url: 'https://me:geheim@h'}}", "clusters.a.token_file", "a token of h"),
        ("clusters: {a: {home: a, url: 'https://me:geheim@h'}}", "clusters.a", "give either home"),
        ("clusters: {a: {home: a, token: geheim}}", "clusters.a.token", "unknown key; did you mean 'token_file'"),
        ("clusters: {a: {home: a, password: geheim}}", "clusters.a.password", "unknown key; known are home"),
        ("clusters: {1: {home: a}}", "clusters.1", "write text"),
        ("clusters: {a: {home: a, price: -1}}", "clusters.a.price", "write US dollars, 0 or more"),
        ("clusters: {a: {home: a, price: '2'}}", "clusters.a.price", "write a number, without quotes"),
        ("clusters: {a: {home: a, price: .nan}}", "clusters.a.price", "write US dollars"),
        ("clusters: {a: {home: a, burst: 1}}", "clusters.a.burst", "write true or false"),
        ("clusters: {a: {home: a, speed: 0}}", "clusters.a.speed", "write a number from 0.001 to 1,000"),
        ("clusters: {a: {home: a, speed: 5.0e-324}}", "clusters.a.speed", "write a number from 0.001"),
        ("clusters: {a: {home: a, speed: .nan}}", "clusters.a.speed", "write a number from 0.001"),
        ("clusters: {a: {home: a, bandwidth: fast}}", "clusters.a.bandwidth", "write a size"),
        ("clusters: {a: {home: a, bandwidth: '0'}}", "clusters.a.bandwidth", "write more than 0 bytes"),
        ("{clusters: {a: {home: a}}, egress: -1}", "egress", "write US dollars"),
        ("{clusters: {a: {home: a}}, burst_after: soon}", "burst_after", "write a duration"),
        ("{clusters: {a: {home: a}}, bursts_after: 1h}", "bursts_after", "did you mean 'burst_after'"),
    ],
)
def test_what_cannot_be_is_named(text: str, field: str, said: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse_clusters(read_yaml(text))
    assert raised.value.field == field
    assert said in raised.value.fix
    assert "geheim" not in str(raised.value), "a token is not repeated"
