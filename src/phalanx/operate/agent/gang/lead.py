"""What the parts of a gang ask of each other inside a shim: whose hands it has, with whom it speaks, and who leads."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from phalanx.core.gang_wire import Frame


class Hands(Protocol):
    """What shims do for their gang."""

    def start_spare(self, member: int, node: int) -> bool:
        """Whether that process was started on that node, or will be: what cannot be is heard of as dead."""

    def kill(self, member: int, why: str) -> None: ...

    def place(self, member: int, slot: int) -> Mapping[str, Any]:
        """That process holds the slot from now on; what it must know for it."""

    def dismiss(self, members: Sequence[int]) -> None:
        """The gang has finished without these processes."""

    def end_gang(self, why: str, interrupted: bool, grace_ms: int) -> None:
        """`interrupted`: nothing was wrong with it. grace_ms: from SIGTERM to SIGKILL."""

    def gang_stands(self, without: Sequence[int], awaits: Sequence[int]) -> None:
        """The gang goes on without the ones, and the shims of the others have yet to come: whoever asks this node is told."""

    def note(self, line: str) -> None: ...


class Peers(Protocol):
    """All connections of the gang's processes. A peer has a `member` and a `channel`, and is hashable by what it is."""

    def open(self, path: Path) -> None:
        """`path`: of the unix socket for processes of this node. Raises OSError."""

    def close(self) -> None: ...

    def members(self) -> Sequence[Any]:
        """Peers on which members hear what becomes of their generation."""

    def say(self, peer: Any, frame: Frame) -> None: ...


class Lead(Protocol):
    """Who leads this node's part of the gang, as its shim knows it."""

    def start(self) -> None:
        """Raises OSError."""

    def stop(self) -> None: ...

    def died(self, member: int, how: str, replaceable: bool) -> None: ...

    def finished(self, member: int) -> None: ...

    def hold(self, member: int) -> None:
        """That process of this node hears nothing before `release`."""

    def release(self, member: int) -> None: ...

    def told(self, grace_ms: int) -> None:
        """This node's ranks are being ended, in so long at most."""

    def lose(self, node: int) -> None:
        """That node is given up by the control plane."""

    def all_started(self) -> None:
        """The control plane says that the shims of all nodes run."""

    def alone(self) -> None:
        """No process of this node is left."""

    def busy(self) -> bool:
        """Whether other nodes have something to do or to hear yet."""

    def turn(self, now_ms: int) -> None: ...

    def next_moment(self) -> int | None: ...
