"""Becomes the Jupyter server of the environment that runs this: JupyterLab where it is there, else another.

Run by path, with the Python of the job, which need not have our package: standard library only, Python 3.8 on.
argv: the file that holds the token, the port, a folder of its own, into which what it found is written.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

KNOWN = (("jupyterlab", "/lab"), ("notebook", "/tree"), ("jupyter_server", "/"))
MISSING = 78  # EX_CONFIG of sysexits.h: another attempt would meet the same


def main() -> None:
    """Returns only where there is no Jupyter."""
    sys.path[0] = str(Path.cwd())  # as for `python -m` below; our own folder is no place for the environment's modules
    token_file, port = Path(sys.argv[1]), sys.argv[2]
    own = Path(sys.argv[3]) if len(sys.argv) > 3 else token_file.parent  # as an older agent ordered it
    found = [(module, path) for module, path in KNOWN if importlib.util.find_spec(module) is not None]
    if not found:
        sys.stderr.write(
            f"environment: {sys.executable} has no Jupyter; install jupyterlab there (add `jupyterlab` to the lock), "
            "or name an environment that has it\n"
        )
        raise SystemExit(MISSING)
    module, path = found[0]
    # Its own record of itself holds the token, so it lies with ours, and goes with the attempt.
    os.environ["JUPYTER_RUNTIME_DIR"] = str(own / "jupyter-runtime")
    os.environ["JUPYTER_TOKEN"] = token_file.read_text().strip()
    told = own / f"{token_file.name}.json"
    staged = told.with_suffix(".new")
    staged.write_text(json.dumps({"module": module, "path": path}))
    staged.replace(told)
    options = ["--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--no-browser"]
    options += ["--ServerApp.allow_remote_access=False", f"--ServerApp.root_dir={Path.cwd()}"]
    if os.geteuid() == 0:
        options.append("--allow-root")
    os.execv(sys.executable, [sys.executable, "-m", module, *options])  # noqa: S606 - the environment's own


if __name__ == "__main__":
    main()
