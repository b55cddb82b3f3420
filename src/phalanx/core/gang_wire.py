"""How ranks and their gang's coordinator talk: frames over a stream socket. Standard library only: the shim imports this.

A frame is two lengths (big-endian, 32 bits each), a JSON object, and bytes; `sizes` in the object cuts the bytes into parts, which
are values of the gang's store. A connection's first frame is `hello(...)`, and says what the connection is for:

- `member`, one a process. It says `here` (it is out of generation `after` and wants the next), `settled` (it can train in its
  generation), `beat` (its main thread's position) and `done`; it hears `go` (its place in a generation) and `over`
  (a generation is).
- `store`, any number: one request, one answer, in turn. Requests name an operation of `torch.distributed.Store`.

Processes speak to their own node's shim. Shims of other nodes than the coordinator's pass that on over TCP, in frames of their own
(`node_hello`, and then what `operate.agent.gang.session` wraps).
"""

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

HEADER_BYTES_MAX: Final = 256 * 1024
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
_LENGTHS: Final = struct.Struct("!II")

ADDRESS: Final = "PHALANX_GANG"
TOKEN: Final = "PHALANX_GANG_TOKEN"  # noqa: S105 - the variable's name
MEMBER: Final = "PHALANX_GANG_MEMBER"
TIMEOUTS: Final = "PHALANX_GANG_TIMEOUTS"
"""What a rank of a gang with a coordinator finds in its environment: `unix:PATH`, the attempt's secret, its process's number in the
gang, and `core.timeouts.Timeouts` as JSON."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message. `head`: a JSON object without `sizes`."""

    head: Mapping[str, Any]
    parts: Sequence[bytes] = ()


def hello(token: str, member: int, channel: str) -> Frame:
    return Frame({"token": token, "member": member, "channel": channel})


def node_hello(token: str, node: int, got: int) -> Frame:
    """The first frame of another node's shim. token: of all shims of the attempt, which ranks are not told. got: number of the last
    frame that it took in the life of this attempt."""
    return Frame({"token": token, "node": node, "got": got})


def encode(frame: Frame, head_bytes_max: int = HEADER_BYTES_MAX) -> bytes:
    """Raises ValueError for one that the other side would refuse."""
    head = json.dumps({**frame.head, "sizes": [len(part) for part in frame.parts]}).encode()
    body = b"".join(frame.parts)
    if len(head) > head_bytes_max or len(body) > BODY_BYTES_MAX:
        raise ValueError(f"a frame of {len(head)} and {len(body)} bytes; {head_bytes_max} and {BODY_BYTES_MAX} go through")
    return _LENGTHS.pack(len(head), len(body)) + head + body


@dataclass(slots=True)
class Decoder:
    """Frames out of bytes as they come, none longer than this."""

    head_bytes_max: int = HEADER_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    _left: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Every frame that is whole now. Raises ValueError for what is none: there is no way back into step."""
        self._left += data
        while len(self._left) >= _LENGTHS.size:
            num_head, num_body = _LENGTHS.unpack_from(self._left)
            if num_head > self.head_bytes_max or num_body > self.body_bytes_max:
                raise ValueError(f"a frame of {num_head} and {num_body} bytes")
            end = _LENGTHS.size + num_head + num_body
            if len(self._left) < end:
                return
            head = bytes(self._left[_LENGTHS.size : _LENGTHS.size + num_head])
            body = bytes(self._left[_LENGTHS.size + num_head : end])
            del self._left[:end]
            yield _frame(head, body)


def _frame(head: bytes, body: bytes) -> Frame:
    said = json.loads(head)
    sizes = said.pop("sizes", []) if isinstance(said, dict) else None
    if not isinstance(sizes, list) or any(type(size) is not int or size < 0 for size in sizes) or sum(sizes) != len(body):
        raise ValueError("a frame whose head is no object, or whose sizes are not those of its bytes")
    parts, at = [], 0
    for size in sizes:
        parts.append(body[at : at + size])
        at += size
    return Frame(said, parts)
