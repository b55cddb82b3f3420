"""The state as the database has it, and the only way to change it: whole transactions, of the one that leads."""

from dataclasses import replace

from phalanx.core.errors import StoreUnavailable
from phalanx.core.ids import AttemptId, JobId
from phalanx.operate.control.fold import Draft
from phalanx.operate.control.people.notes import Note
from phalanx.operate.control.rows import Commit
from phalanx.operate.control.store import Store


class Committed:
    """One control plane's hold on a home.

    world: the committed state; replaced, never changed, so any thread may read the one it got. epoch: its number among the
    leaders of the home; an older one's writes are refused. offsets: bytes of each rank's record file whose facts are committed.
    note: who asked for what is committed next.
    """

    def __init__(self, store: Store, epoch: int | None = None) -> None:
        """Takes the lead over the store, unless it was taken already as `epoch`. Raises StoreUnavailable."""
        self.epoch = store.take_lead() if epoch is None else epoch
        self.world = store.load()
        self.offsets = dict(store.records_offsets())
        self.note: Note | None = None
        self._store = store
        self._in_doubt = False

    def commit(self, draft: Draft, key: tuple[str, JobId] | None = None, offset: tuple[AttemptId, int, int] | None = None) -> None:
        """One transaction; the world moves only once it is durable. One that fails in its last moment may be done all the same:
        if so it counts as done, if not or if nobody knows now it raises, and nothing follows before that is known."""
        if not draft.events:
            return
        world = draft.world
        note, self.note = self._named(draft), None
        commit = Commit(draft.events, draft.changes, draft.outbox, world.sequence, key, offset, draft.notices, note)
        self._in_doubt = True
        try:
            self._store.commit(self.epoch, commit)
        except StoreUnavailable as error:
            self._find_out_after(error)
            if self.world.seq < world.seq:
                raise
        else:
            self.world, self._in_doubt = world, False

    def _named(self, draft: Draft) -> Note | None:
        """What somebody asked for that had no name before, is on the first job that came of it."""
        if self.note is None or self.note.target:
            return self.note
        return replace(self.note, target=str(getattr(draft.events[0].body, "job", "")))

    def find_out(self) -> None:
        """After a commit that failed: whether the database has it, and then the world as the database has it. Else everything
        built on the older world would be refused for ever. To be called before anything new is built. Raises StoreUnavailable."""
        if not self._in_doubt:
            return
        if self._store.last_seq() != self.world.seq:
            world, offsets = self._store.load(), self._store.records_offsets()
            self.world, self.offsets = world, {**self.offsets, **offsets}
        self._in_doubt = False

    def check_lead(self) -> None:
        """Raises Bug when another took over. A write would notice; one that has nothing to write would keep its agents for ever,
        and the new leader never hear of them."""
        self._store.check_lead(self.epoch)

    def lead_above(self, seen: int) -> None:
        """Raises the own epoch above one that a node has seen, when that is higher: the database was restored from an older
        copy, and the node refuses whom it takes for an older leader.

        Raises StoreUnavailable, and Bug when another took over. After a StoreUnavailable the database may have the new number
        all the same; then the next write ends this process as a superseded one, and the one started in its place leads.
        """
        if seen > self.epoch:
            self.epoch = self._store.raise_epoch(self.epoch, seen + 1)

    def _find_out_after(self, error: StoreUnavailable) -> None:
        try:
            self.find_out()
        except StoreUnavailable as still:
            unknown = f"{error}; whether it was done is known once the database answers again"
            raise StoreUnavailable(unknown) from still
