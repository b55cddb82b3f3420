"""What an attempt sees of the machine, decided before anything is mounted."""

from pathlib import Path

from phalanx.operate.agent.isolation.view import Wanted, is_closed, real, view

JOB, ATTEMPT = "/srv/phx/jobs/a-1", "/srv/phx/node/attempts/a-1.1"


def seen(closed: frozenset[str] = frozenset(), **changes: object) -> list[tuple[str, str]]:
    values: dict[str, object] = {"hidden": ("/srv/phx",), "own": {JOB: JOB, ATTEMPT: ATTEMPT}, "read": ("/usr",)}
    return [(place["at"], place["kind"]) for place in view(Wanted(**{**values, **changes}), closed.__contains__)]  # type: ignore[arg-type]


def test_the_home_is_empty_but_for_what_is_the_attempts_own() -> None:
    assert seen() == [("/srv/phx", "empty"), (JOB, "own"), (ATTEMPT, "own")]


def test_of_a_store_only_the_jobs_own_folder_is_seen() -> None:
    kept = seen(hidden=("/srv/phx", "/shared"), kept="/shared/a-1-77", data=("/shared/a-1-77", "/shared/b-1-66"))
    assert kept[:3] == [("/shared", "empty"), ("/shared/a-1-77", "kept"), ("/shared/b-1-66", "theirs")]


def test_outer_places_come_first_whatever_their_names() -> None:
    order = [at for at, _ in seen(own={"/tmp": f"{ATTEMPT}/tmp", JOB: JOB}, read=("/tmp/venv", "/srv/phx/env/venv"))]
    assert all(order.index(str(parent)) < order.index(at) for at in order for parent in Path(at).parents if str(parent) in order)
    assert "/tmp/venv" in order and "/srv/phx/env/venv" in order


def test_a_python_that_holds_the_home_does_not_bring_it_along() -> None:
    assert seen(read=("/srv",)) == [("/srv/phx", "empty"), (JOB, "own"), (ATTEMPT, "own")]
    inside = seen(hidden=("/srv/phx", "/srv/phx/env/home"), read=("/srv/phx/env",))
    assert inside.index(("/srv/phx/env", "read_only")) < inside.index(("/srv/phx/env/home", "empty"))


def test_a_folder_that_others_may_not_pass_gives_way_to_an_empty_one_where_something_in_it_is_needed() -> None:
    assert ("/closed", "empty") in seen(frozenset({"/closed", "/closed/python"}), read=("/closed/python/3.11",))
    assert ("/closed/python/3.11", "read_only") in seen(frozenset({"/closed"}), read=("/closed/python/3.11",))
    assert ("/closed", "empty") not in seen(frozenset({"/closed"}), data=("/closed/data",)), "a job's own words open nothing"


def test_what_a_job_names_changes_nothing_that_is_the_platforms() -> None:
    named = seen(data=(JOB, "/srv/phx", "/srv/phx/jobs/b-1", "/dev", "/proc/1", "/sys", "/data"))
    assert (JOB, "own") in named and ("/srv/phx", "empty") in named and ("/data", "theirs") in named
    assert not {at for at, _ in named} & {"/dev", "/proc/1", "/sys"}
    assert ("/srv/phx/jobs/b-1", "theirs") in named, "looked for by the rights of the job's user, who cannot pass the home"


def test_only_what_is_there_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o711)
    (tmp_path / "link").symlink_to("a")
    assert real([str(tmp_path / "link"), str(tmp_path / "none"), "", "/"]) == (str(tmp_path / "a"),)
    assert not is_closed(str(tmp_path / "a")) and not is_closed(str(tmp_path / "none"))
    (tmp_path / "a").chmod(0o700)
    assert is_closed(str(tmp_path / "a"))
