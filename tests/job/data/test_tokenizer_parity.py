"""The fast library gives the ids of `tokenizers`, or is not used; a tokenizer of the user's own."""

import json
import sys
from pathlib import Path

import gigatoken
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.core.errors import DataError
from phalanx.job.data import tokens
from phalanx.job.data.encoder import Encoder
from phalanx.job.data.parity import NASTY, Choice, choose, fast_json
from phalanx.job.data.prepare import PrepareProgress, prepare
from tests.drawn import examples
from tests.job.data.prepare_cases import contents

NONE = np.zeros(0, dtype=np.uint32)


@pytest.fixture(scope="module")
def own(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer.json trained on real text, so that it has tokens for what contractions end with."""
    out = tmp_path_factory.mktemp("own") / "data"
    prepare([corpus], out, vocab_size=1500)
    return (out / "tokenizer.json").read_text()


def code_points(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.unique(np.asarray([ord(character) for character in text if ord(character) > 127], dtype=np.uint32))


def differ(own: str, text: str) -> bool:
    fast = gigatoken.Tokenizer.from_json(fast_json(own))
    return bool(fast.encode(text).tolist() != tokens.encode(tokens.parse(own), [text])[0])


def test_our_own_tokenizer_is_encoded_by_the_fast_library(own: str) -> None:
    assert choose(own, [text.encode() for text in NASTY], code_points("éß世🐍")) == Choice("gigatoken")


def test_letters_of_a_newer_unicode_than_the_other_librarys_are_found_before_they_do_harm(own: str) -> None:
    """U+323B0 became a letter in Unicode 17: gigatoken knows it, `tokenizers` takes it for a sign."""
    text = "\U000323b0's"
    assert differ(own, text), "else this test shows nothing any more: choose a newer letter"
    choice = choose(own, [], code_points(f"é{text}世"))
    assert choice == Choice("gigatoken", doubtful="\U000323b0")
    documents = [text.encode(), b"plain 's", "世é's".encode()]
    slow = Encoder(own, Choice("tokenizers")).encode(documents)
    assert [ids.tolist() for ids in Encoder(own, choice).encode(documents)] == [ids.tolist() for ids in slow]


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.text(st.one_of(st.sampled_from(" \n\r\t's1a!<|>\u0301\u200d"), st.characters(exclude_categories=["Cs"])), max_size=40)
    )
)
def test_any_text_gets_the_same_ids(own: str, documents: list[str]) -> None:
    theirs = tokens.encode(tokens.parse(own), documents)
    choice = choose(own, [], code_points("".join(documents)))
    assert choice.engine == "gigatoken"
    found = Encoder(own, choice).encode([document.encode() for document in documents])
    assert [ids.tolist() for ids in found] == theirs


def phases(texts: Path, out: Path, tokenizer: Path) -> set[str]:
    seen: list[PrepareProgress] = []
    prepare([texts], out, tokenizer=tokenizer, progress=seen.append)
    return {item.phase for item in seen}


def test_without_the_fast_library_the_result_is_the_same(
    texts: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "encoding with gigatoken" in phases(texts, tmp_path / "fast", tokenizer)
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    assert "encoding with tokenizers (gigatoken is not installed)" in phases(texts, tmp_path / "slow", tokenizer)
    assert contents(tmp_path / "fast") == contents(tmp_path / "slow")


def test_a_tokenizer_that_the_fast_library_gets_wrong_or_cannot_load_goes_to_the_other(
    own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = json.loads(own)
    fields["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "Isolated"}],
    }
    choice = choose(json.dumps(fields), [b"a 1234 b"], NONE)
    assert choice.engine == "tokenizers"
    assert "gigatoken" in choice.why

    class Wrong:
        """Gives no ids for anything."""

        @classmethod
        def from_json(cls, text: str) -> "Wrong":
            return cls()

        def encode(self, text: str) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
            return NONE

    monkeypatch.setattr(gigatoken, "Tokenizer", Wrong)
    assert choose(own, [b"text"], NONE) == Choice("tokenizers", why="gigatoken gives other ids for this tokenizer")


def test_a_given_tokenizer_by_file_or_folder(prepared_once: Path, corpus: Path, tmp_path: Path) -> None:
    trained = (prepared_once / "tokenizer.json").read_bytes()
    for number, given_as in enumerate((prepared_once, prepared_once / "tokenizer.json")):
        manifest = prepare([corpus], tmp_path / str(number), tokenizer=given_as, held_out=0.2, shard_tokens_max=20_000)
        assert manifest.vocab_size == 600
        assert manifest.parameters["tokenizer"] == "given"
        made = contents(tmp_path / str(number))
        assert made["tokenizer.json"] == trained
        assert {name: data for name, data in made.items() if name != "manifest.json"} == {
            name: data for name, data in contents(prepared_once).items() if name != "manifest.json"
        }


def test_another_end_of_document(own: str, corpus: Path, tmp_path: Path) -> None:
    fields = json.loads(own.replace("<|endoftext|>", "</s>"))
    (tmp_path / "t.json").write_text(json.dumps(fields))
    with pytest.raises(
        DataError, match=r"lacks this token; name one of its special tokens \(</s>\) with --end-of-document"
    ) as caught:
        prepare([corpus], tmp_path / "out", tokenizer=tmp_path / "t.json")
    assert (caught.value.field, caught.value.value) == ("end_of_document", "<|endoftext|>")
    manifest = prepare([corpus], tmp_path / "out", tokenizer=tmp_path / "t.json", end_of_document="</s>")
    assert manifest.end_of_document == fields["model"]["vocab"]["</s>"]


def test_tokenizers_that_cannot_be_used_are_refused(own: str, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"model": 3}')
    (tmp_path / "junk.json").write_bytes(b"\xff\0")
    fields = json.loads(own)
    fields["added_tokens"].append({**fields["added_tokens"][0], "id": 2_000_000, "content": "<far>"})
    fields["model"]["vocab"]["<far>"] = 2_000_000
    (tmp_path / "far.json").write_text(json.dumps(fields))
    wrong = {
        "none.json": "is not a tokenizer.json",
        "junk.json": "is not",
        "gone.json": "cannot be read",
        "far.json": "over 999999",
        "folder": "is a folder without a tokenizer.json",
    }
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/vocab.json").write_text("{}")
    for name, message in wrong.items():
        with pytest.raises(DataError, match=message) as caught:
            prepare([corpus], tmp_path / "out", tokenizer=tmp_path / name)
        assert caught.value.field == "tokenizer"
    with pytest.raises(DataError, match="leave out one"):
        prepare([corpus], tmp_path / "out", tokenizer=tmp_path / "far.json", vocab_size=300)
    assert not (tmp_path / "out").exists()
