"""`phalanx data ...` as its user meets it: what is asked for, and what is shown of the answer."""

import json
from pathlib import Path

from phalanx.core.plot_page import ALONE
from tests.show.cli.terminal import Terminal


def test_data_prepare(terminal: Terminal, tmp_path: Path) -> None:
    prepared = terminal("data", "prepare", str(tmp_path), "--out", str(tmp_path / "out"), "--vocab-size", "300")
    assert prepared.err == "reading\ntokenizing\n"
    assert "After a break  2 shards with 1,200 tokens were kept\n" in prepared.out
    assert prepared.out[prepared.out.index("Left out") :].splitlines() == [
        "Left out", "  5 binary", "    a\\x1b[31m.bin is binary (byte 2 is NUL)", "    and 4 more files; --left-out FILE lists all",
        "  9 no_text in 1 file", "    byte 0 of a.jsonl has no text",
    ]  # fmt: skip
    words = ["--tokenizer", "t.json", "--end-of-document", "</s>", "--text-field", "body", "--normalize", "nfc", "--min-chars", "9"]
    asked = terminal(
        "data", "prepare", "a/*.jsonl", "b", "--out", "o", *words, "--dedup", "--processes", "3", "--held-out", "0.2", "-o", "json"
    )
    wanted = {"tokenizer": "t.json", "end_of_document": "</s>", "text_field": "body", "normalize": "nfc", "min_chars": "9"}
    found = json.loads(asked.out)
    assert found.items() >= {**wanted, "dedup": "True", "processes": "3", "held_out": "0.2"}.items()
    assert (found["left_out"]["binary"]["count"], found["resumed"]["shards"]) == (5, 2)
    assert terminal("data", "prepare", "a", "--out", "o", "--processes", "0").code == 2


def test_data_show_is_looked_at(terminal: Terminal, tmp_path: Path) -> None:
    shown = terminal("data", "show", str(tmp_path)).out
    assert shown.startswith(f"{tmp_path}: 1,000 tokens of 40 documents from 2 sources, 2.0 KiB on disk\n")
    bars = {
        words[0]: (len(words[1]), words[2]) for words in map(str.split, shown.splitlines()) if len(words) > 3 and "█" in words[1]
    }
    assert bars["train"] == (15, "90.0%") and bars["books"] == (4, "25.0%")
    assert "4 to 7  ██████████████████████████████         16" in shown
    assert "<b>web\\x1b[2J" in shown and "5 binary" in shown
    assert shown.endswith("Text of held_out, from token 0 on\n      one\n        two\\x1b[31m <script>\n")
    assert (
        json.loads(terminal("data", "show", str(tmp_path), "-o", "json").out)["samples"][0]["text"] == "one\n  two\x1b[31m <script>"
    )
    (tmp_path / "samples").mkdir()
    assert terminal("data", "show", str(tmp_path / "samples")).out.splitlines()[-2:] == ["samples  8", "classes  cat, dog\\x1b[31m"]


def test_data_show_writes_a_page_in_which_nothing_runs(terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    shown = terminal("data", "show", str(tmp_path), "--page", str(file), "-o", "json")
    assert (json.loads(shown.out)["tokens"], shown.err) == (1000, f"The page is in {file}.\n")
    page = file.read_text()
    assert (
        page.startswith("<!doctype html>") and "<script" not in page and "&lt;script&gt;" in page and "&lt;b&gt;web\\x1b[2J" in page
    )
    assert page.index(ALONE) < page.index("<title>")
    assert "width:90.00%" in page and "not taken: 5 binary<" in page and page.count("not taken") == 1 and "\x1b" not in page
    for name, message in {"page.txt": "ends in .html", "no/page.html": "cannot be written (No such file"}.items():
        refused = terminal("data", "show", str(tmp_path), "--page", str(tmp_path / name))
        assert refused.code == 2 and "--page" in refused.err and message in refused.err
    (tmp_path / "samples").mkdir()
    assert "holds samples" in terminal("data", "show", str(tmp_path / "samples"), "--page", str(file)).err


def test_data_verify(terminal: Terminal, tmp_path: Path) -> None:
    verified = terminal("data", "verify", str(tmp_path), "-o", "json")
    assert (json.loads(verified.out)["checksums_ok"], verified.err) == (True, "checking\n")
    damaged = terminal("data", "verify", "/damaged")
    assert (damaged.code, damaged.out) == (1, "") and damaged.err.endswith("Error: a.bin is cut\\x1b; and 1 more: b.bin\n")
    damaged = terminal("data", "verify", "/damaged", "-o", "json")
    found = json.loads(damaged.out)
    assert (damaged.code, found["checksums_ok"], [one["file"] for one in found["damaged"]]) == (1, False, ["a.bin", "b.bin"])
    missing = terminal("data", "show", "/nonexistent")
    assert (missing.code, missing.err) == (2, "Error: data is '/nonexistent': is not a folder made by `phalanx data prepare`\n")


def test_data_index_and_pack(terminal: Terminal, tmp_path: Path) -> None:
    words = ["--out", "o", "--classes", "names", "--processes", "3", "-o", "json"]
    indexed = terminal("data", "index", "a/*.tar", "b", *words)
    assert json.loads(indexed.out) == {
        "paths": "('a/*.tar', 'b')", "out": "o", "classes": "names", "processes": "3", "force": "False",
    }  # fmt: skip
    assert indexed.err == "indexing\n"
    words = ["--out", "o", "--shard-mib", "64", "--ending", "npy", "--ending", "png", "-o", "json"]
    packed = json.loads(terminal("data", "pack", str(tmp_path), *words).out)
    assert (packed["endings"], packed["shard_mib"]) == ("('npy', 'png')", "64")
    assert terminal("data", "pack", "a", "--out", "o", "--shard-mib", "0").code == 2


def test_data_import_and_export_of_mds(terminal: Terminal) -> None:
    words = ["--tokens", "ids", "--tokenizer", "t.json", "--documents", "end_marks", "--bytes-type", "int64", "--held-out", "0.1"]
    imported = json.loads(terminal("data", "import-mds", "m", "--out", "o", *words, "-o", "json").out)
    wanted = {"folder": "m", "out": "o", "tokens": "ids", "tokenizer": "t.json", "documents": "end_marks", "bytes_type": "int64"}
    assert wanted | {"held_out": "0.1", "end_of_document": "", "force": "False"} == imported
    exported = json.loads(
        terminal("data", "export-mds", "d", "--out", "o", "--split", "held_out", "--sequence", "9", "-o", "json").out
    )
    assert exported == {"folder": "d", "out": "o", "split": "held_out", "sequence": "9", "force": "False"}


def test_data_import_of_megatron(terminal: Terminal) -> None:
    words = ["a", "b.idx", "--out", "o", "--tokenizer", "t.json", "--held-out", "0", "-o", "json"]
    imported = json.loads(terminal("data", "import-megatron", *words).out)
    assert imported["prefixes"] == "(PosixPath('a'), PosixPath('b.idx'))"
    assert (imported["tokenizer"], imported["held_out"], imported["end_of_document"]) == ("t.json", "0.0", "")
    assert terminal("data", "import-megatron", "a", "--out", "o").code == 2


def test_data_push(terminal: Terminal, tmp_path: Path) -> None:
    place = "s3://bucket/corpus\x1b"
    pushed = terminal("data", "push", str(tmp_path), place)
    assert (pushed.out, pushed.err) == (f"{tmp_path} is in s3://bucket/corpus\\x1b\n", "pushing\n")
    told = terminal("data", "push", str(tmp_path), place, "-o", "json")
    assert json.loads(told.out) == {"path": str(tmp_path), "place": place, "files": 3}
