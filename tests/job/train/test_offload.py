"""Moments in host memory or in a file: the same bits as beside the weights, the same checkpoints; little memory, clear errors."""

import errno
import functools
import gc
import os
import re
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from phalanx.core.errors import SetupError, StoreUnavailable
from phalanx.core.recipe import LlamaRecipe, config_text
from phalanx.job.checkpoint.commit import Saved
from phalanx.job.checkpoint.digest import bit_sum, state_digest
from phalanx.job.checkpoint.live import LiveState, is_in_place
from phalanx.job.checkpoint.local import local_of
from phalanx.job.checkpoint.manifest import Origin
from phalanx.job.checkpoint.nameless import nameless
from phalanx.job.checkpoint.restore import find, load
from phalanx.job.checkpoint.save import Identity, SavePolicy, save
from phalanx.job.checkpoint.state import set_training_state, training_state
from phalanx.job.sdk.session import Session
from phalanx.job.train import optimizer as optimizers
from phalanx.job.train import setup
from phalanx.job.train.device import Rank, alone, prepare_device, this_rank
from phalanx.job.train.offload import OffloadPlace, StreamedAdamW, offload_place, streamed_adamw
from phalanx.job.train.offload import place as place_module
from phalanx.job.train.offload.pieces import ALIGN, plan
from phalanx.job.train.offload.place import agreed, check_room
from phalanx.job.train.offload.stores import TURNS, OnDisk
from phalanx.job.train.optimizer import make_adamw
from phalanx.job.train.parallel import make_mesh, sharded_llama
from phalanx.job.train.step import train_step

RECIPE = LlamaRecipe(dim=32, layers=2, heads=2, ffn_dim=40, sequence=16, batch_per_rank=2, steps=6, warmup_steps=2, clip=0.3)
VOCAB = 97
SKIPPED = 3
CPU = torch.device("cpu")
PIECE_BYTES = 4096
ORIGIN = Origin(config="c", data="d", world_size=1, layout={"dp": 1})
Numbers = list[tuple[float, float]]
SMALL_PIECES: dict[str, Any] = {"piece_bytes": PIECE_BYTES}


@pytest.fixture(scope="module")
def rank() -> Iterator[Rank]:
    device = prepare_device()
    alone(device)
    yield this_rank(device)
    dist.destroy_process_group()


@pytest.fixture
def on_disk(tmp_path: Path) -> OffloadPlace:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return OffloadPlace(kind="nvme", folder=folder, node="n")


def samples(step: int) -> torch.Tensor:
    return torch.randint(VOCAB, (1, 2, RECIPE.sequence + 1), generator=torch.Generator().manual_seed(step))


class Run:
    """One model with its optimizer."""

    def __init__(self, rank: Rank, place: OffloadPlace | None = None, **how: Any) -> None:
        self.model = sharded_llama(RECIPE.shape(VOCAB), RECIPE, rank, make_mesh(rank), "fp32")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(optimizers, "streamed_adamw", functools.partial(streamed_adamw, **how))
            self.optimizer = make_adamw(self.model, RECIPE, place)

    def steps(self, first: int, last: int) -> Numbers:
        """Of which one is not accepted; every gradient is clipped."""
        facts = [
            train_step(
                self.model, self.optimizer, samples, RECIPE, step, lambda: 0.0, accepts=lambda step, loss, norm: step != SKIPPED
            )
            for step in range(first, last + 1)
        ]
        assert all(fact.grad_norm > RECIPE.clip for fact in facts)
        return [(fact.loss, fact.grad_norm) for fact in facts]

    def state(self) -> Mapping[str, torch.Tensor]:
        return training_state(self.model, self.optimizer)

    def digest(self) -> str:
        return state_digest(self.state(), CPU).text

    def streamed(self) -> StreamedAdamW:
        assert isinstance(self.optimizer, StreamedAdamW)
        return self.optimizer


@pytest.fixture(scope="module")
def plain(rank: Rank) -> tuple[Numbers, str]:
    run = Run(rank)
    return run.steps(1, RECIPE.steps), run.digest()


@pytest.mark.parametrize("staged", [False, True], ids=["in place", "copied"])
@pytest.mark.parametrize("piece_bytes", [ALIGN * 16, 2**24])
@pytest.mark.parametrize("kind", ["cpu", "nvme"])
def test_losses_norms_and_the_whole_state_are_those_of_moments_beside_the_weights(
    rank: Rank, plain: tuple[Numbers, str], on_disk: OffloadPlace, kind: Any, piece_bytes: int, staged: bool
) -> None:
    run = Run(rank, replace(on_disk, kind=kind), piece_bytes=piece_bytes, staged=staged)
    assert (run.steps(1, RECIPE.steps), run.digest()) == plain


@given(sizes=st.lists(st.integers(0, 700), max_size=12), aligned=st.integers(1, 5))
def test_pieces_hold_each_element_of_every_array_once_and_cut_where_vectors_do(sizes: list[int], aligned: int) -> None:
    found = plan(sizes, aligned * ALIGN)
    held = [0] * len(sizes)
    for piece in found.pieces:
        assert 0 < piece.count <= aligned * ALIGN
        for one in piece.stretches:
            assert one.first == held[one.array] and one.first % ALIGN == 0
            assert one.at >= 0 and one.at + one.count <= piece.count
            assert found.starts[one.array] + one.first == piece.first + one.at
            held[one.array] += one.count
    assert held == sizes and sum(piece.count for piece in found.pieces) == found.count


@pytest.mark.parametrize("kinds", [(None, "nvme"), ("nvme", None), ("nvme", "cpu")])
def test_a_checkpoint_goes_on_with_moments_elsewhere(
    rank: Rank, plain: tuple[Numbers, str], on_disk: OffloadPlace, tmp_path: Path, kinds: tuple[Any, Any]
) -> None:
    before, after = (replace(on_disk, kind=kind) if kind else None for kind in kinds)
    policy, identity = SavePolicy(root=tmp_path / "saves", every=1), Identity(origin=ORIGIN, dtype="fp32", device=CPU)
    first = Run(rank, before, **(SMALL_PIECES if before else {}))
    numbers = first.steps(1, 4)
    assert isinstance(save(policy, identity, 4, first.state(), {}), Saved)
    second = Run(rank, after, **(SMALL_PIECES if after else {}))
    second.steps(1, 1)  # what is loaded goes over something
    found = find(policy.root, ORIGIN)
    assert found is not None
    load(found, ORIGIN, second.model, second.optimizer, CPU)
    assert second.digest() == first.digest()
    assert (numbers + second.steps(5, RECIPE.steps), second.digest()) == plain


def test_what_is_loaded_lies_where_moments_lay(rank: Rank, on_disk: OffloadPlace) -> None:
    """A dictionary whose tensors are elsewhere is copied; the options of groups are taken, and what loading calls is called."""
    run, other = Run(rank, on_disk, **SMALL_PIECES), Run(rank)
    other.steps(1, 2)
    where, heard = [one.data_ptr() for one in run.streamed().store.arrays], []
    run.optimizer.register_load_state_dict_post_hook(lambda _: heard.append("loaded"))
    set_training_state(run.model, run.optimizer, dict(other.state()))
    assert run.digest() == other.digest() and heard == ["loaded"]
    assert [one.data_ptr() for one in run.streamed().store.arrays] == where
    state = run.state()
    assert is_in_place(state, run.model, run.optimizer)
    mapped = [one for name, one in state.items() if name.endswith((".exp_avg", ".exp_avg_sq"))]
    low = [array.data_ptr() for array in run.streamed().store.arrays]
    high = [array.data_ptr() + array.nbytes for array in run.streamed().store.arrays]
    assert all(any(a <= local_of(one).data_ptr() < b for a, b in zip(low, high, strict=True)) for one in mapped)
    assert run.optimizer.param_groups[0]["lr"] == other.optimizer.param_groups[0]["lr"]


def test_a_state_is_looked_up_once_and_seen_in_place(rank: Rank, on_disk: OffloadPlace) -> None:
    """So that snapshots and saves copy what the step before left, and not an older one."""
    run = Run(rank, on_disk, **SMALL_PIECES)
    live = LiveState(run.model, run.optimizer)
    parts = live.held()
    then = [tensor.clone() for _, tensor in parts]
    run.steps(1, 2)
    assert all(old is new for (_, old), (_, new) in zip(parts, live.held(), strict=True))
    changed = [part.name for (part, tensor), old in zip(parts, then, strict=True) if not torch.equal(tensor, old)]
    assert changed == [part.name for part, _ in parts]


def test_hooks_are_called_before_anything_changes_and_only_for_an_update(rank: Rank, on_disk: OffloadPlace) -> None:
    run, seen = Run(rank, on_disk, **SMALL_PIECES), []
    run.optimizer.register_step_pre_hook(lambda *_: seen.append(run.digest()))
    begun = [run.digest()]
    run.steps(1, 1)
    begun.append(run.digest())
    run.steps(2, SKIPPED)
    assert seen == begun and len(set(begun)) == 2


def test_host_memory_is_a_few_pieces_whatever_the_moments_take_and_no_file_has_a_name(rank: Rank, on_disk: OffloadPlace) -> None:
    run = Run(rank, on_disk, **SMALL_PIECES)
    store = run.streamed().store
    assert isinstance(store, OnDisk)
    moments = 2 * sum(local_of(one).nbytes for one in run.model.parameters())
    assert store.buffer_bytes == 2 * TURNS * PIECE_BYTES < moments / 4
    assert os.fstat(store.descriptor).st_size >= moments
    run.steps(1, 2)
    assert list(on_disk.folder.iterdir()) == [] and held_below(on_disk.folder), "a crash leaves nothing either"
    del run, store
    gc.collect()
    assert not held_below(on_disk.folder), "the file has gone"


@pytest.mark.parametrize("staged", [False, True], ids=["in place", "copied"])
def test_a_digest_reads_a_file_piece_by_piece_and_leaves_none_of_it_in_memory(
    rank: Rank, on_disk: OffloadPlace, staged: bool
) -> None:
    run = Run(rank, on_disk, piece_bytes=ALIGN * 16, staged=staged)
    run.steps(1, 1)
    state, whole = run.state(), run.digest()
    assert mapped_bytes(on_disk.folder) > 0, "whoever looks at moments themselves has them in memory"
    summed = run.streamed().bit_sums(CPU)
    assert mapped_bytes(on_disk.folder) == 0
    assert state_digest(state, CPU, summed=summed).text == whole and mapped_bytes(on_disk.folder) == 0
    moments = {name: local_of(one) for name, one in state.items() if ".exp_avg" in name}
    assert {one.data_ptr() for one in moments.values()} == summed.keys()
    assert all(summed[one.data_ptr()].equal(bit_sum(one)) for one in moments.values())
    run.steps(2, 2)
    assert mapped_bytes(on_disk.folder) == 0, "a step lets go of what a snapshot looked at"


def mapped_bytes(folder: Path) -> int:
    """Of the files in that folder, in this process's memory."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = str(folder) in line
        elif inside and line.startswith("Rss:"):
            found += 1024 * int(line.split()[1])
    return found


def held_below(folder: Path) -> bool:
    """Whether this process has a file of that folder open or mapped."""
    opened = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            opened.append(str(one.readlink()))
    return str(folder) in Path("/proc/self/maps").read_text() or any(one.startswith(str(folder)) for one in opened)


def test_a_file_system_that_makes_no_file_without_a_name_has_none_left_either(
    on_disk: OffloadPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *args: Any, **more: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return opened(path, flags, *args, **more)

    monkeypatch.setattr(os, "open", refuse)
    descriptor = nameless(on_disk.folder)
    assert os.pwrite(descriptor, b"moments", 0) == 7 and list(on_disk.folder.iterdir()) == []
    os.close(descriptor)


def test_parameters_without_a_gradient_stay_as_they_are_as_with_torchs_own(rank: Rank, on_disk: OffloadPlace) -> None:
    ended = []
    for place in (None, on_disk):
        weights = [nn.Parameter(torch.full((200,), float(at))) for at in range(1, 4)]
        groups = [{"params": weights[:2], "weight_decay": 0.1}, {"params": weights[2:], "weight_decay": 0.0}]
        optimizer = streamed_adamw(groups, place, 256, fused=True) if place else torch.optim.AdamW(groups, fused=True)
        for at in (0, 2):
            weights[at].grad = torch.linspace(-1, 1, 200)
        for _ in range(3):
            optimizer.step()
        ended.append(torch.stack([*weights]))
    assert torch.equal(ended[0], ended[1]) and torch.equal(ended[0][1], torch.full((200,), 2.0))


@pytest.mark.parametrize("where", ["missing", "a file", "/proc"])
def test_a_folder_that_cannot_be_written_is_refused_before_a_step(rank: Rank, tmp_path: Path, where: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(SetupError) as caught:
        Run(rank, OffloadPlace(kind="nvme", folder=tmp_path / where, node="n"))
    assert caught.value.field == "hyperparameters.offload_dir" and caught.value.value == str(tmp_path / where)
    assert "give a folder of this node that can be written" in caught.value.fix


def test_too_little_room_is_refused_with_bytes_needed_and_free(rank: Rank, on_disk: OffloadPlace) -> None:
    with pytest.raises(SetupError, match=rf"{10**18} bytes there, and \d+ are free; make room, or give a folder of a larger disk"):
        check_room(on_disk, 10**18)
    with pytest.raises(SetupError, match="needs 4096 bytes of host memory, and 0 are free; give the job more memory"):
        check_room(replace(on_disk, kind="cpu"), 4096, lambda: 2**20)


def test_what_the_system_refuses_is_told_to_all_and_what_was_made_goes(
    rank: Rank, on_disk: OffloadPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank that failed alone would leave the others waiting."""
    undone: list[int] = []
    with pytest.raises(SetupError, match=r"hyperparameters.offload: 'nvme': .* cannot be made \(no room\); write offload: none"):
        agreed(on_disk, lambda: (_ for _ in ()).throw(RuntimeError("no room")), undone.append)
    elsewhere = SetupError("hyperparameters.offload", "nvme", "give another folder")
    monkeypatch.setattr(place_module, "told_by_all", lambda error: [error, elsewhere])
    with pytest.raises(SetupError, match="give another folder"):
        agreed(on_disk, lambda: 7, undone.append)
    assert undone == [7]


def test_a_step_without_any_gradient_changes_nothing(rank: Rank, on_disk: OffloadPlace) -> None:
    weight = nn.Parameter(torch.ones(200))
    streamed_adamw([{"params": [weight], "weight_decay": 0.1}], on_disk, 256, fused=True).step()
    assert torch.equal(weight, torch.ones(200))


def test_a_gang_that_goes_on_after_a_fault_may_be_tried_again(
    rank: Rank, on_disk: OffloadPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bad input of its user: an attempt that ends so would end the job."""
    recipe, model = replace(RECIPE, offload="cpu"), nn.Linear(4, 4)
    monkeypatch.setattr(place_module.check_room, "__defaults__", (lambda: 0,))
    with pytest.raises(SetupError, match="give the job more memory"):
        setup._optimizer(model, recipe, Session(node="n"), rank)
    with pytest.raises(StoreUnavailable, match=r"give the job more memory.*; the gang cannot go on with 1 ranks"):
        setup._optimizer(model, recipe, Session(node="n"), replace(rank, generation=1))


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    """As a disk that fills up between the look and the taking."""
    was = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, was[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)


def test_a_disk_that_is_full_by_then_is_refused_and_nothing_is_left(rank: Rank, on_disk: OffloadPlace) -> None:
    with files_at_most(8192), pytest.raises(SetupError, match="do not fit there"):
        Run(rank, on_disk)
    assert list(on_disk.folder.iterdir()) == [] and not held_below(on_disk.folder)


def cut_off(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)


def cannot_grow(descriptor: int) -> None:
    """Nor be written at all, by this process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.parametrize("broken", [cut_off, cannot_grow])
def test_a_file_that_fails_in_a_step_ends_the_run_by_its_name(
    rank: Rank, on_disk: OffloadPlace, broken: Callable[[int], None]
) -> None:
    run = Run(rank, on_disk, **SMALL_PIECES)
    store, was = run.streamed().store, resource.getrlimit(resource.RLIMIT_FSIZE)
    assert isinstance(store, OnDisk)
    try:
        broken(store.descriptor)
        with pytest.raises(StoreUnavailable, match=r"scratch: the optimiser's state could not be moved \(.+\)"):
            run.steps(1, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, was)


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"offload_dir": "/scratch"}, "offload_dir", "write offload: nvme too"),
        ({"offload": "cpu", "offload_dir": "/scratch"}, "offload_dir", "write offload: nvme too"),
        ({"offload": "nvme", "offload_dir": "scratch"}, "offload_dir", "write an absolute path"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(given: dict[str, Any], field: str, words: str) -> None:
    ((name, value, fix),) = replace(RECIPE, **given).problems()
    assert (name, value) == (field, given[field]) and words in fix


def test_a_run_goes_on_with_other_places_and_lies_in_the_attempts_folder_unless_told() -> None:
    asked = replace(RECIPE, offload="nvme", offload_dir="/scratch")
    assert config_text(asked) == config_text(RECIPE) and not asked.problems()
    session = Session(keepers_dir="/agent/attempt/keepers", node="a")
    own = offload_place(session, replace(RECIPE, offload="nvme"))
    assert own == OffloadPlace(kind="nvme", folder=Path("/agent/attempt"), node="a")
    told = offload_place(session, asked)
    assert told is not None and told.folder == Path("/scratch") and offload_place(session, RECIPE) is None
