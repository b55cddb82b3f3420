"""One job and two real platforms: offers, the choice, and what happens where one cannot take it or does not answer."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from live_platform import Platform, until

from phalanx.client import connect

GONE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Pair:
    """A platform in the EU that is dear, and one in the US that is cheap."""

    lab: Platform
    cloud: Platform
    folder: Path

    def file(self, **changes: Any) -> None:
        """The clusters file of the lab's home; `changes` are of the cloud's entry, or of the file where they are no field of it."""
        url = json.loads((self.cloud.home / "run" / "server.json").read_text())["url"]
        whole = {name: changes.pop(name) for name in ("burst_after", "hour_of_delay") if name in changes}
        cloud = {"url": url, "token_file": str(self.cloud.home / "token"), **changes}
        gone = {"url": GONE, "token_file": str(self.cloud.home / "token")}
        clusters = {"lab": {"home": "."}, "cloud": cloud, "gone": gone}
        (self.lab.home / "clusters.yaml").write_text(json.dumps({"clusters": clusters, **whole}))

    def job(self, **more: Any) -> str:
        path = self.folder / "job.yaml"
        spec = {"name": "small", "entrypoint": "python -c 'print(1)'", "max_duration": "10m", **more}
        path.write_text(json.dumps(spec))
        return str(path)

    def plan(self, asked: str, **more: Any) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.lab.run("plan", self.job(**more), "--clusters", asked, "-o", "json").stdout)
        return answer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    lab, cloud = (Platform(tmp_path_factory.mktemp(name)) for name in ("lab", "cloud"))
    made = Pair(lab, cloud, tmp_path_factory.mktemp("jobs"))
    try:
        for platform, region, price in ((made.lab, "eu", 6.0), (made.cloud, "us", 3.0)):
            platform.up()
            with platform.client() as client:
                client.set_policy({"region": region, "nodes": [{"match": "*", "price": price}]})
        made.file()
        yield made
    finally:
        for platform in (made.lab, made.cloud):
            platform.run("down", "--force")


def test_the_cheaper_one_gets_the_job_and_runs_it(pair: Pair) -> None:
    pair.file()
    done = pair.lab.run("submit", pair.job(), "--clusters", "all", "-o", "json")
    job = json.loads(done.stdout)["id"]
    assert "It goes to cloud: with PHALANX_CLUSTER=cloud" in done.stderr
    with connect(None, {**pair.lab.environ, "PHALANX_CLUSTER": "cloud"}) as client:
        assert client.wait(job, timeout_s=240).outcome == "succeeded"
    with pair.lab.client() as client:
        assert client.jobs() == ()


def test_the_offers_are_told_with_their_parts_and_who_does_not_answer(pair: Pair) -> None:
    pair.file()
    view = pair.plan("all")
    cloud, lab, gone = view["offers"]
    assert [one["cluster"] for one in (cloud, lab, gone)] == ["cloud", "lab", "gone"]
    assert (view["chosen"], cloud["verdict"], lab["verdict"], gone["verdict"]) == ("cloud", "chosen", "possible", "away")
    assert (cloud["region"], cloud["cost_of_devices"], lab["cost_of_devices"]) == ("us", pytest.approx(0.5), pytest.approx(1.0))
    assert cloud["cost"] == pytest.approx(0.5 + cloud["cost_of_delay"])
    assert gone["sentence"].startswith(f"{GONE} does not answer")
    shown = pair.lab.run("plan", pair.job(), "--clusters", "all").stdout
    assert shown.startswith("small: cloud is the best of 3 clusters. Nothing was submitted.\n")
    assert f"gone  {GONE} does not answer" in shown


def test_data_stay_where_they_are_when_moving_them_costs_more(pair: Pair) -> None:
    pair.file()
    view = pair.plan("all", placing={"data": {"eu": "100GB"}})
    assert view["chosen"] == "lab"
    assert view["offers"][1]["cost_of_data"] == pytest.approx(9.0)


def test_each_platform_refuses_what_may_not_run_there(pair: Pair) -> None:
    pair.file()
    view = pair.plan("all", placing={"regions": ["eu"]})
    assert (view["chosen"], view["offers"][1]["cluster"]) == ("lab", "cloud")
    assert "this platform is in us" in view["offers"][1]["sentence"]
    alone = pair.cloud.run("submit", pair.job(placing={"regions": ["eu"]}), check=False)
    assert (alone.returncode, "placing.regions is 'eu': this platform is in us" in alone.stderr) == (2, True)


def test_a_burst_is_taken_when_the_own_cluster_is_full(pair: Pair, tmp_path: Path) -> None:
    pair.file(burst=True, burst_after="0s")
    assert pair.plan("lab,cloud")["chosen"] == "lab"
    release = tmp_path / "go"
    wait = f"while [ ! -e {release} ]; do sleep 0.05; done"
    full = pair.lab.submit({"name": "full", "entrypoint": ["bash", "-c", wait], "resources": {"gpus": 2}})
    until(lambda: _state(pair.lab, full) == "running")
    assert pair.plan("lab,cloud")["chosen"] == "cloud"
    release.touch()
    pair.lab.finished(full)


def test_bad_input_submits_nothing_and_says_why(pair: Pair) -> None:
    pair.file()
    unknown = pair.lab.run("submit", pair.job(), "--clusters", "lab,clowd", check=False)
    assert (unknown.returncode, "--clusters is 'clowd': is not in clusters.yaml; did you mean 'cloud'?" in unknown.stderr) == (
        2,
        True,
    )
    nowhere = pair.lab.run("submit", pair.job(resources={"gpus": 64}), "--clusters", "lab,cloud", check=False)
    assert nowhere.returncode == 2
    assert "none of them takes the job: cloud: never fits" in nowhere.stderr
    silent = pair.lab.run("submit", pair.job(), "--clusters", "gone", check=False)
    assert (silent.returncode, f"none of the clusters answers: gone: {GONE} does not" in silent.stderr) == (3, True)
    no_file = pair.cloud.run("plan", pair.job(), "--clusters", "all", check=False)
    assert (no_file.returncode, "there is no such file; write one" in no_file.stderr) == (4, True)


def _state(platform: Platform, job: str) -> str:
    with platform.client() as client:
        return client.job(job).state
