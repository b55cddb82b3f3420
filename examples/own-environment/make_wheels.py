"""Makes the two wheels of this example in `wheels`, the same bytes each time: a package in two versions, so that it runs without
any network. A job of yours names packages of an index instead."""

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

LONG_AGO = (1980, 1, 1, 0, 0, 0)


def make_wheel(folder: Path, name: str, version: str, requires: Sequence[str] = ()) -> Path:
    """A wheel with one module `name` (letters and '_') that knows its VERSION; see the 'Binary distribution format'."""
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: phalanx-example\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(zipfile.ZipInfo(path, LONG_AGO), text)
    return wheel


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    wheels = Path(__file__).resolve().parent / "wheels"
    wheels.mkdir(exist_ok=True)
    for version in ("1.0", "2.0"):
        print(make_wheel(wheels, "tiny_greeting", version).name)
