"""The command `phalanx`. Imports only core and client, and those only inside the commands: `--help` must stay cheap.

`app.py` calls `phalanx.show.cli.main.run(tools)` with the callables of `tools.Tools`.
"""
