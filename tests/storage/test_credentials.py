"""The right to a store is told apart from the rest of an environment, so that it need not lie in a file."""

from phalanx.storage.credentials import CREDENTIALS, parted


def test_the_right_to_a_store_is_told_apart_and_nothing_is_lost() -> None:
    environ = {"PATH": "/bin", "AWS_REGION": "eu", **{name: f"value of {name}" for name in CREDENTIALS}}
    plain, own = parted(environ)
    assert plain == {"PATH": "/bin", "AWS_REGION": "eu"} and set(own) == set(CREDENTIALS)
    assert {**plain, **own} == environ


def test_an_empty_one_and_one_that_is_no_text_stay_where_they_are() -> None:
    environ = {"AWS_SECRET_ACCESS_KEY": "", "AWS_SESSION_TOKEN": "\udcff"}
    assert parted(environ) == (environ, {})
