"""Long answers rendered once for all who ask at the same time."""

import asyncio
import gzip

import pytest
from fastapi import Response

from phalanx.core.errors import StoreUnavailable
from phalanx.operate.control.api.kept_answers import ANSWERS_MAX, KEPT_MS, PACKED_FROM_BYTES, KeptAnswers


class Kitchen:
    """Renders, and counts how often. Each rendering waits until it is let go on."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.rendered = 0
        self.go_on = asyncio.Event()
        self.broken = False
        self.kept = KeptAnswers(lambda: self.now_ms)

    async def render(self) -> bytes:
        self.rendered += 1
        number = self.rendered
        await self.go_on.wait()
        if self.broken:
            raise StoreUnavailable("the disk is full")
        return b"%d" % number

    async def ask(self, *key: object) -> Response:
        return await self.kept.answer(key, self.render)


def test_readers_of_the_same_share_one_rendering_and_whoever_asks_later_than_it_is_kept_has_another() -> None:
    async def scenario() -> None:
        kitchen = Kitchen()
        asked = [asyncio.create_task(kitchen.ask("nodes", 1)) for _ in range(5)]
        await asyncio.sleep(0)
        kitchen.go_on.set()
        answers = await asyncio.gather(*asked)
        assert [one.body for one in answers] == [b"1"] * 5
        assert len({one.headers["ETag"] for one in answers}) == 1
        kitchen.now_ms += KEPT_MS - 1
        assert (await kitchen.ask("nodes", 1)).body == b"1"
        kitchen.now_ms += 1
        assert (await kitchen.ask("nodes", 1)).body == b"2"

    asyncio.run(scenario())


def test_what_was_committed_since_shows_at_once_and_another_sight_has_an_answer_of_its_own() -> None:
    async def scenario() -> None:
        kitchen = Kitchen()
        kitchen.go_on.set()
        keys = [("nodes", "all", 1), ("nodes", "all", 2), ("nodes", "team a", 2), ("status", "all", 2)]
        assert [(await kitchen.ask(*key)).body for key in keys] == [b"1", b"2", b"3", b"4"]

    asyncio.run(scenario())


def test_a_reader_who_hangs_up_takes_the_answer_from_nobody() -> None:
    async def scenario() -> None:
        kitchen = Kitchen()
        first, second = (asyncio.create_task(kitchen.ask("nodes")) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        kitchen.go_on.set()
        assert (await second).body == b"1"
        assert first.cancelled()

    asyncio.run(scenario())


def test_a_rendering_that_failed_is_tried_again_by_the_next_reader() -> None:
    async def scenario() -> None:
        kitchen = Kitchen()
        kitchen.go_on.set()
        kitchen.broken = True
        with pytest.raises(StoreUnavailable):
            await kitchen.ask("status")
        kitchen.broken = False
        assert (await kitchen.ask("status")).body == b"2"

    asyncio.run(scenario())


def test_it_keeps_a_bounded_number() -> None:
    async def scenario() -> None:
        kitchen = Kitchen()
        kitchen.go_on.set()
        for number in range(ANSWERS_MAX + 1):
            await kitchen.ask(number)
        await kitchen.ask(ANSWERS_MAX)
        assert kitchen.rendered == ANSWERS_MAX + 1
        await kitchen.ask(0)
        assert kitchen.rendered == ANSWERS_MAX + 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("accepts", "packed"),
    [
        ("gzip, deflate", True),
        ("br;q=1.0, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("identity", False),
        ("", False),
        ("xgzip", False),
    ],
)
def test_a_long_one_is_packed_for_who_takes_that_under_a_tag_of_its_own(accepts: str, packed: bool) -> None:
    async def rendered() -> bytes:
        return b"n" * PACKED_FROM_BYTES

    async def short() -> bytes:
        return b"n"

    async def scenario() -> tuple[Response, Response, Response]:
        kept = KeptAnswers(lambda: 0)
        return (
            await kept.answer(("long",), rendered, accepts),
            await kept.answer(("long",), rendered),
            await kept.answer(("short",), short, accepts),
        )

    asked, plain, brief = asyncio.run(scenario())
    assert plain.body == b"n" * PACKED_FROM_BYTES
    assert (gzip.decompress(bytes(asked.body)) if packed else asked.body) == plain.body
    assert asked.headers.get("Content-Encoding") == ("gzip" if packed else None)
    assert (asked.headers["ETag"] != plain.headers["ETag"]) is packed
    assert asked.headers["Vary"] == plain.headers["Vary"] == "Accept-Encoding"
    assert (brief.body, brief.headers.get("Content-Encoding")) == (b"n", None)
