"""`phalanx --help`: cheap because it imports none of the heavy parts, and complete."""

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.core.errors import Exit
from phalanx.show.cli.main import build
from phalanx.show.cli.options import EXIT_CODES

ROOT = Path(__file__).resolve().parents[3]
HEAVY = (
    "httpx",
    "pydantic",
    "yaml",
    "rich",
    "fastapi",
    "sqlalchemy",
    "numpy",
    "torch",
    "mlflow",
    "asyncio",
    "ssl",
    "phalanx.client",
)
COMMANDS = (
    "up", "down", "status", "submit", "ls", "describe", "why", "logs", "wait", "cancel", "ledger", "model", "data", "events",
    "pause", "resume", "retry", "node", "agent", "completion", "checkpoint",
)  # fmt: skip
PROBE = f"""
import sys
from phalanx.show.cli.main import run
code = run(None, sys.argv[1:])
print("HEAVY", [name for name in {HEAVY!r} if name in sys.modules])
sys.exit(code)
"""


def helped(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", PROBE, *arguments, "--help"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_root_help_lists_every_command_and_the_exit_codes_and_imports_nothing_heavy() -> None:
    out = helped()
    assert out.splitlines()[-1] == "HEAVY []"
    assert [name for name in COMMANDS if f"\n  {name} " not in out] == []
    for word in ("Exit codes:", "130", "70", "--version"):
        assert word in out


@pytest.mark.parametrize(
    "command",
    [
        ("submit",),
        ("logs",),
        ("up",),
        ("model", "show"),
        ("model", "sample"),
        ("model", "export"),
        ("data", "prepare"),
        ("ledger",),
        ("events",),
        ("pause",),
        ("node", "ls"),
        ("node", "drain"),
        ("agent", "token"),
    ],
    ids=" ".join,
)
def test_every_command_explains_its_exit_codes(command: tuple[str, ...]) -> None:
    out = helped(*command)
    assert "Exit codes:" in out
    assert "--output" in out
    assert "[[" not in out.splitlines()[0]


def test_the_version_is_shown() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE, "--version"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0].split()[0] == "phalanx"
    assert done.returncode == 0


def test_every_command_and_option_is_in_the_manual() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    missing = []
    for name, command in build().commands.items():
        parts = getattr(command, "commands", None) or {"": command}
        missing += [f"phalanx {name} {leaf}".strip() for leaf in parts if f"phalanx {name} {leaf}".strip() not in page]
        options = {
            option for part in parts.values() for parameter in part.params for option in parameter.opts if option[:2] == "--"
        }
        missing += [f"{name} {option}" for option in sorted(options - {"--help"}) if option not in page]
    assert missing == []


def test_every_exit_code_is_in_the_manual_and_the_help() -> None:
    page = (ROOT / "docs/cli.md").read_text()
    assert [code for code in Exit if f"| {int(code)} |" not in page or f" {int(code)} " not in EXIT_CODES] == []
