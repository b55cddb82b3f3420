"""Teams that were not said to trust each other: no job is placed where one can reach another, whenever the node joined."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from phalanx.core.isolation import NEEDED, Isolation
from phalanx.operate.control import tables
from phalanx.operate.control.people.accounts import Accounts
from phalanx.operate.control.people.directory import Directory
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.views import node_views
from tests.operate.control.control_bench import Bench, a_spec, new_bench

NOTE = Note(at_ms=5, who="admin", token="admin", what="x.y", target="t", address="127.0.0.1")
APART = Isolation("uid", NEEDED)


class Platform:
    """A bench whose controller asks the accounts of its own store."""

    def __init__(self, home: Path) -> None:
        self.accounts: Accounts | None = None
        self.bench: Bench = new_bench(home, strangers=self._strangers)
        self.accounts = Accounts(self.bench.store, self.bench.clock.now_ms)

    def _strangers(self) -> bool:
        return self.known.strangers()

    @property
    def known(self) -> Accounts:
        assert self.accounts is not None
        return self.accounts

    def team(self, name: str, trusting: bool = False) -> None:
        self.known.add_team(self.bench.control.epoch, name, NOTE, trusting)

    def say(self, trusting: bool | None) -> None:
        self.known.set_organisation(self.bench.control.epoch, "Lab", NOTE, trusting)

    def join(self, node: str, isolation: Isolation | None) -> None:
        agent = self.bench.add(node, greet=False)
        agent.shape = replace(agent.shape, isolation=isolation)
        agent.hello()

    def placed(self) -> bool:
        job = self.bench.submit(a_spec())
        self.bench.tick(2)
        return self.bench.job(job).attempt is not None

    def why(self) -> str:
        return next(iter(self.bench.control.waiting.values())).reason.sentence()


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    made = Platform(tmp_path)
    yield made
    made.bench.store.close()


def test_a_node_that_joins_later_and_mixes_jobs_is_given_none(platform: Platform) -> None:
    platform.team("red")
    platform.team("blue")
    platform.join("late", None)
    assert not platform.placed()
    assert "--isolation uid" in platform.why() and "do not trust each other" in platform.why()
    (view,) = node_views(platform.bench.world, {}, platform.known.strangers())
    assert "--isolation uid" in view.exposed and view.drained == ""
    platform.join("apart", APART)
    platform.bench.tick(2)
    assert platform.bench.world.on_nodes.get(platform.bench.agents["apart"].node)
    assert not platform.placed(), "the one that keeps jobs apart is full now"
    assert "do not keep jobs of several teams apart" in platform.why()
    platform.say(trusting=True)
    platform.bench.tick(2)
    assert not platform.bench.control.waiting, "each has its devices"
    assert node_views(platform.bench.world, {}, platform.known.strangers())[0].exposed == ""


@pytest.mark.parametrize("teams", [{}, {"red": False}, {"red": False, "blue": True}, {"red": True, "blue": True}])
def test_one_team_and_teams_that_trust_each_other_are_as_before(platform: Platform, teams: dict[str, bool]) -> None:
    for team, trusting in teams.items():
        platform.team(team, trusting)
    platform.join("late", None)
    assert platform.placed()


@pytest.mark.parametrize("end", [lambda one: one.team("green"), lambda one: one.say(trusting=False)])
def test_trust_ends_with_a_team_that_was_not_said_to(platform: Platform, end: Callable[[Platform], None]) -> None:
    platform.team("red")
    platform.team("blue", trusting=True)
    platform.say(trusting=None)
    platform.join("late", None)
    assert platform.placed(), "a new name of the organisation says nothing of it"
    end(platform)
    assert not platform.placed()


def test_teams_of_an_earlier_version_trust_nobody_and_a_removed_one_is_no_stranger(platform: Platform) -> None:
    platform.team("red", trusting=True)
    platform.team("blue", trusting=True)
    with platform.bench.store.leading(platform.bench.control.epoch) as connection:
        connection.execute(delete(tables.meta).where(tables.meta.c.key == "trusting"))
    platform.accounts = Accounts(platform.bench.store, platform.bench.clock.now_ms)
    platform.join("late", None)
    assert not platform.placed()
    platform.known.remove_team(platform.bench.control.epoch, "blue", NOTE)
    platform.bench.tick(2)
    assert not platform.bench.control.waiting


def test_no_tick_reads_the_accounts_again(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    platform.team("red")
    platform.team("blue")
    looks = list[int]()
    look = Accounts.directory

    def counted(self: Accounts) -> Directory:
        looks.append(1)
        return look(self)

    monkeypatch.setattr(Accounts, "directory", counted)
    platform.bench.tick(20)
    assert len(looks) == 1
    platform.known.note_used(platform.bench.control.epoch, {"0" * 64: 1})
    platform.bench.tick(20)
    assert len(looks) == 1, "a token's use changes no team"
