"""What a run that begins with given weights is refused for, before anything is built."""

import json
from pathlib import Path

import pytest

from phalanx.core.errors import CheckpointError, DataError, SpecError
from phalanx.core.llama_shape import LlamaShape
from phalanx.core.recipe import LlamaRecipe
from phalanx.job.data.open import open_data
from phalanx.job.data.prepare import prepare
from phalanx.job.data.sources import Sources
from phalanx.job.models.hf_export import write_hf
from phalanx.job.models.llama import Llama
from phalanx.job.train.initial import check_init
from phalanx.job.train.recipe import llama_recipe
from tests.job.data.prepare_cases import write_texts

SHAPE = LlamaShape(vocab=300, dim=16, layers=1, heads=4, kv_heads=2, ffn_dim=24, qkv_bias=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    out = tmp_path_factory.mktemp("data")
    prepare([write_texts(out / "texts", files=4, lines=30)], out / "data", vocab_size=300, held_out=0.3)
    return Sources.of(open_data(out / "data"))


def model(to: Path, vocab: int = 300, tokenizer: str = "") -> Path:
    made = Llama(LlamaShape(**{name: getattr(SHAPE, name) for name in SHAPE.__slots__} | {"vocab": vocab}))
    beside = {"tokenizer.json": tokenizer.encode()} if tokenizer else {}
    write_hf(to, made, "float32", beside, 64, 0)
    return to


def begun(folder: Path) -> LlamaRecipe:
    return llama_recipe({"init": str(folder)})


def test_the_shape_is_the_folder_s(data: Sources, tmp_path: Path) -> None:
    recipe = begun(model(tmp_path / "m", 320, data.first.tokenizer_path.read_text()))
    check_init(recipe, data)
    assert recipe.shape(data.vocab_size) == LlamaShape(vocab=320, dim=16, layers=1, heads=4, kv_heads=2, ffn_dim=24, qkv_bias=True)


def test_another_tokenizer_is_refused_by_the_first_token_that_differs(data: Sources, tmp_path: Path) -> None:
    said = json.loads(data.first.tokenizer_path.read_text())
    vocab = said["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    folder = model(tmp_path / "m", tokenizer=json.dumps(said))
    with pytest.raises(DataError, match=f"'[ab]': is token .* prepare the data again with `--tokenizer {folder}`"):
        check_init(begun(folder), data)


def test_without_a_tokenizer_both_have_as_many_tokens(data: Sources, tmp_path: Path) -> None:
    check_init(begun(model(tmp_path / "same")), data)
    with pytest.raises(DataError, match=r"300: init .* has 304 and no tokenizer.json"):
        check_init(begun(model(tmp_path / "more", 304)), data)


def test_a_vocabulary_smaller_than_the_data_s_is_refused(data: Sources, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="300 tokens; write at least that"):
        check_init(LlamaRecipe(vocab=299), data)
    check_init(LlamaRecipe(vocab=300), data)
    with pytest.raises(SpecError, match="300 tokens; prepare the data with"):
        check_init(begun(model(tmp_path / "m", 299, data.first.tokenizer_path.read_text())), data)


def test_a_folder_that_is_no_model_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{tmp_path}.*config.json cannot be read"):
        begun(tmp_path)
    with pytest.raises(SpecError, match="leave it out"):
        llama_recipe({"init": str(tmp_path), "layers": 3})
