"""Lists in pages. A cursor is the key of the last row that was given, so rows that come and go in between move nothing: none is
given twice, and none that was there all the time is left out.

The body stays the list; where more follows, the Link header (RFC 8288) holds the address of the next page. Callers take the cursor
from there and look into it as little as we promise to keep its form.
"""

import base64
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

from fastapi import Query, Request, Response

from phalanx.core.errors import SpecError

LIMIT_MAX: Final = 1_000
CURSOR_CHARS_MAX: Final = 2_000
Key = tuple[int | str, ...]
T = TypeVar("T")
LINK: Final[dict[int | str, dict[str, Any]]] = {
    200: {"headers": {"Link": {"schema": {"type": "string"}, "description": 'Where more follows: `<ADDRESS>; rel="next"`'}}}
}
"""For `responses=` of a list."""


@dataclass(frozen=True, slots=True)
class Page:
    """What of a list was asked for. after: the key of the last row of the page before; None on the first. limit: None is all."""

    name: str
    after: Key | None
    limit: int | None
    request: Request
    response: Response

    def cut(self, rows: Iterable[T], key: Callable[[T], Key]) -> tuple[T, ...]:
        """The page, of `rows` that come after `after` in the list's order; names the next one where more follows."""
        if self.limit is None:
            return tuple(rows)
        found = tuple(islice(rows, self.limit + 1))
        if len(found) > self.limit:
            found = found[: self.limit]
            self.lead_on(key(found[-1]))
        return found

    def of(self, rows: Iterable[T], key: Callable[[T], Key]) -> tuple[T, ...]:
        """The page of a whole list of few rows, in the order of their keys."""
        after = self.after
        return self.cut((row for row in sorted(rows, key=key) if after is None or key(row) > after), key)

    def lead_on(self, last: Key) -> None:
        """More follows the row with the key `last`."""
        url = self.request.url.include_query_params(cursor=written(self.name, last))
        self.response.headers["Link"] = f'<{url.path}?{url.query}>; rel="next"'


class Pages:
    """The dependency of one list. name: of the list, whose cursors are no other's. kinds: of a key's parts. limit: where nobody
    asks for one; None is all, in lists that are as long as the fleet and its policy."""

    def __init__(self, name: str, *kinds: type[int | str], limit: int | None = LIMIT_MAX) -> None:
        self._name = name
        self._kinds = kinds
        self._limit = limit

    def __call__(
        self,
        request: Request,
        response: Response,
        limit: Annotated[int | None, Query(ge=1, le=LIMIT_MAX)] = None,
        cursor: Annotated[str, Query(max_length=CURSOR_CHARS_MAX)] = "",
    ) -> Page:
        """Raises SpecError for a cursor that this list did not give."""
        after = read(self._name, cursor, self._kinds) if cursor else None
        return Page(self._name, after, limit or (LIMIT_MAX if after else self._limit), request, response)


def written(name: str, key: Key) -> str:
    """The cursor of a key, fit for an address."""
    return base64.urlsafe_b64encode(json.dumps([name, *key], separators=(",", ":")).encode()).decode().rstrip("=")


def read(name: str, cursor: str, kinds: tuple[type[int | str], ...]) -> Key:
    """The key of a cursor. Raises SpecError for one that list `name` never gave."""
    refusal = SpecError("cursor", cursor, "is none of this list; take it from the Link of the page before, or leave it out")
    try:
        found = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError) as error:  # no base64, no UTF-8, no JSON, or JSON of a thousand brackets
        raise refusal from error
    if not isinstance(found, list) or found[:1] != [name] or [type(part) for part in found[1:]] != list(kinds):
        raise refusal
    if not all(_can_be(part) for part in found[1:]):
        raise refusal
    return tuple(found[1:])


def _can_be(part: int | str) -> bool:
    """Whether a database takes it: JSON can spell half a surrogate pair, NUL, and numbers beyond any column's."""
    if isinstance(part, int):
        return 0 <= part < 2**63
    try:
        return b"\0" not in part.encode()
    except UnicodeEncodeError:
        return False
