"""What a user writes is never a command: it reaches ranks word for word, and no shell of the platform's reads it on the way."""

import ast
import json
import re
from pathlib import Path

from tests.operate.agent.agent_cell import Cell

SRC = Path(__file__).resolve().parents[3] / "src" / "phalanx"
SAID = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['SAID'], os.environ['PHALANX_HYPERPARAMETERS']]))"
SHELLS = {
    ("os", "system"),
    ("os", "popen"),
    ("subprocess", "getoutput"),
    ("subprocess", "getstatusoutput"),
    ("asyncio", "create_subprocess_shell"),
}

MENTIONED = re.compile(r"shell=|\b(?:eval|exec|compile)\(|system|popen|getoutput|getstatusoutput|subprocess_shell")
"""Whatever could be one: the others need no parsing."""


def hostile(canary: Path) -> list[str]:
    touch = f"touch {canary}"
    return [
        f"$({touch})", f"`{touch}`", f"; {touch}", f"| {touch}", f"&& {touch}", f"\n{touch}\n", f"'; {touch}; '", f'"; {touch}; "',
        "--privileged", "-x", "%s%n", "${IFS}", "*", "~", "a b", "", "\\", "\x1b[2J", "\u202eabc", "é🎉",
    ]  # fmt: skip


def test_words_variables_and_hyperparameters_reach_a_rank_as_they_are(cell: Cell, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    words = hostile(canary)
    text = "".join(words)
    launch = cell.launch(SAID, ranks=1, env={"SAID": text}, hyperparameters={"lr": text})
    cell.far.start(cell.launch(SAID, ranks=1, env=launch.env, hyperparameters=launch.hyperparameters, argv=(*launch.argv, *words)))
    assert cell.far.phase("demo-1.1", "ended").exits[0].code == 0
    got, said, given = json.loads(cell.far.text("log", "demo-1.1", 0))
    assert (got, said, json.loads(given)["lr"]) == (words, text, text)
    assert not canary.exists()
    asked = cell.launch("", "shell-2.1", ranks=1, argv=("sh", "-c", words[0]))
    cell.far.start(asked)
    cell.far.phase("shell-2.1", "ended")
    assert canary.exists(), "a shell that the user asks for reads it"


def test_no_module_asks_a_shell() -> None:
    found = []
    for path in sorted(SRC.rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if MENTIONED.search(text) else ():
            if not isinstance(node, ast.Call):
                continue
            name, of = (
                getattr(node.func, "attr", getattr(node.func, "id", "")),
                getattr(getattr(node.func, "value", None), "id", ""),
            )
            shell = of == "subprocess" and any(word.arg == "shell" for word in node.keywords)
            plain = isinstance(node.func, ast.Name) and name in ("eval", "exec", "compile")
            if shell or plain or (of, name) in SHELLS:
                found.append(f"{path.relative_to(SRC)}:{node.lineno}")
    assert found == []
