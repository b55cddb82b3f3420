"""shell, attach, exec, forward, notebook: working inside jobs."""

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from phalanx.core.errors import Conflict, Exit, PhalanxError, ServerUnreachable, SpecError
from phalanx.show.cli.options import EXIT_CODES, HomeOption, JobArgument, leave, tools_of

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.core.channels import NotebookPlace
    from phalanx.core.views import JobView

BACK_S_MAX: Final = 120.0
"""How long a terminal whose connection broke tries to come back."""
LOOK_S: Final = 0.2

GpusOption = Annotated[str, typer.Option(help="Devices, as resources.gpus: 1, H100:8, 0.25.")]
CpusOption = Annotated[float, typer.Option(help="CPU cores; 0 asks for none in particular.", min=0, show_default=False)]
MemoryOption = Annotated[str, typer.Option(help="Host memory, such as 16GiB.", show_default=False)]
QueueOption = Annotated[str, typer.Option(help="The queue that it is counted in.")]
IdleOption = Annotated[
    str, typer.Option("--idle-timeout", help="Stop it after so long without a sign of work; 0 is never.", show_default="30m")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other field of the job, e.g. environment.lock=uv.lock. Repeatable."),
]
KeyOption = Annotated[str, typer.Option("--detach-key", help="Leaves the terminal, which goes on; none for no key.")]


def add(app: typer.Typer) -> None:
    """Add this subject's commands."""
    app.command("shell", epilog=EXIT_CODES)(shell)
    app.command("attach", epilog=EXIT_CODES)(attach)
    app.command("exec", epilog=EXIT_CODES)(execute)
    app.command("forward", epilog=EXIT_CODES)(forward)
    app.command("notebook", epilog=EXIT_CODES)(notebook)


def shell(
    context: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(metavar="[COMMAND]...", help="Instead of a shell, after --.")] = None,
    gpus: GpusOption = "1",
    cpus: CpusOption = 0.0,
    memory: MemoryOption = "",
    queue: QueueOption = "default",
    name: Annotated[str, typer.Option(help="The job's name.")] = "shell",
    workdir: Annotated[Path | None, typer.Option(help="Folder to take along.", show_default="none")] = None,
    idle_timeout: IdleOption = "",
    changes: SetOption = None,
    detached: Annotated[bool, typer.Option("--detached", "-d", help="Only start it, and say its id.")] = False,
    detach_key: KeyOption = "^]",
    home: HomeOption = None,
) -> None:
    """A shell on a node, with devices of its own.

    It is a job whose terminal stays when you leave, when the connection breaks, and when the platform starts again: Ctrl-] leaves
    it, `phalanx attach JOB` comes back. The exit code is the shell's, or 130 when you left.
    """
    from phalanx.client import connect
    from phalanx.show.cli.joined import key_of

    key = key_of(detach_key)
    data = _spec("shell", gpus, cpus, memory, queue, name, workdir, idle_timeout)
    if command:
        data["entrypoint"] = list(command)
    with connect(home) as client:
        job = _submitted(context, client, data, changes)
        if detached:
            typer.echo(job.id)
            return
        _say_where(job.id, key)
        _until_running(client, job.id)
        leave(_stay(client, job.id, key))


def attach(job: JobArgument, detach_key: KeyOption = "^]", home: HomeOption = None) -> None:
    """Come back to the terminal of a shell.

    Several may be in it at once; the screen fits the smallest. The exit code is the shell's, or 130 when you left.
    """
    from phalanx.client import connect
    from phalanx.show.cli.joined import key_of

    key = key_of(detach_key)
    with connect(home) as client:
        leave(_stay(client, job, key))


def execute(
    job: JobArgument,
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="And its words, after --.")],
    terminal: Annotated[bool, typer.Option("--terminal", "-t", help="Give it a terminal, as a shell or an editor needs.")] = False,
    rank: Annotated[int, typer.Option(help="In which rank's place.", min=0)] = 0,
    home: HomeOption = None,
) -> None:
    """Run a command in a running job's place.

    It has the rank's environment, devices, folder and user, and this command's standard input; its output, errors and exit code are
    this command's. It ends when this command does.
    """
    from phalanx.client import connect
    from phalanx.show.cli.joined import Joined

    with connect(home) as client, client.channel(job, "exec", rank=rank, argv=command, terminal=terminal) as channel:
        try:
            left = Joined(channel, None, terminal).run()
        except KeyboardInterrupt:
            leave(Exit.DETACHED)
    if left.code is None:
        raise ServerUnreachable(left.lost)
    leave(left.code)


def forward(
    job: JobArgument,
    ports: Annotated[list[str], typer.Argument(metavar="PORT[:LOCAL]...", help="The job's port, and the one here, if another.")],
    home: HomeOption = None,
) -> None:
    """Reach ports of a running job on this machine.

    Only what the job's own processes listen on, on loopback or every address, is reached. It goes on until Ctrl-C.
    """
    from contextlib import ExitStack

    from phalanx.client import connect

    asked = [_ports(one) for one in ports]
    with connect(home) as client, ExitStack() as open_ones:
        for port, local in asked:
            here = open_ones.enter_context(client.forward(job, port, local, _complain))
            typer.echo(f"http://127.0.0.1:{here.port} is port {port} of {job}")
        _wait_for_leaving()


def notebook(
    context: typer.Context,
    place: Annotated[Path | None, typer.Argument(metavar="[FILE|FOLDER]", help="Notebook or folder to take along.")] = None,
    gpus: GpusOption = "1",
    cpus: CpusOption = 0.0,
    memory: MemoryOption = "",
    queue: QueueOption = "default",
    name: Annotated[str, typer.Option(help="The job's name.")] = "notebook",
    job: Annotated[str, typer.Option(help="Come back to this one, instead of starting another.", show_default=False)] = "",
    port: Annotated[int, typer.Option(help="On this machine; 0 is any.", min=0, max=65535)] = 0,
    idle_timeout: IdleOption = "",
    changes: SetOption = None,
    detached: Annotated[bool, typer.Option("--detached", "-d", help="Only start it, and say its id.")] = False,
    home: HomeOption = None,
) -> None:
    """Jupyter on a node, with devices of its own, in this machine's browser.

    The job's environment has to have jupyterlab, notebook or jupyter_server. What is written in the folder there stays with the
    job. Ctrl-C leaves; the notebook goes on, and `phalanx notebook --job JOB` comes back to it.
    """
    from phalanx.client import connect

    file = place.name if place is not None and place.is_file() else ""
    with connect(home) as client:
        if not job:
            folder = None if place is None else place.parent if file else place
            data = _spec("notebook", gpus, cpus, memory, queue, name, folder, idle_timeout)
            job = _submitted(context, client, data, changes).id
            if detached:
                typer.echo(job)
                return
        _until_running(client, job)
        found = _until_it_listens(client, job)
        with client.forward(job, found.port, port, _complain) as here:
            path = f"{found.path.rstrip('/')}/tree/{file}" if file and found.path != "/" else found.path
            typer.echo(f"http://127.0.0.1:{here.port}{path}?token={found.token}")
            _note(f"Ctrl-C leaves; {job} goes on, and `phalanx notebook --job {job}` comes back.")
            _wait_for_leaving()


def _spec(
    kind: str, gpus: str, cpus: float, memory: str, queue: str, name: str, workdir: Path | None, idle_timeout: str
) -> dict[str, Any]:
    resources = {"gpus": gpus, "cpus": cpus, **({"memory": memory} if memory else {})}
    data: dict[str, Any] = {"name": name, "kind": kind, "resources": resources, "queue": queue}
    if workdir is not None:
        if not workdir.is_dir():
            raise SpecError("workdir", str(workdir), "is no folder; name one that is there")
        data["workdir"] = str(workdir.resolve())
    return data | ({"idle_timeout": idle_timeout} if idle_timeout else {})


def _submitted(context: typer.Context, client: "Client", data: dict[str, Any], changes: list[str] | None) -> "JobView":
    from phalanx.core.spec_parse import anchored, parse_spec
    from phalanx.show.cli.overrides import changed

    spec = anchored(parse_spec(changed(data, changes or (), Path.cwd())), Path.cwd())
    pack = tools_of(context).pack_workdir(Path(spec.workdir)) if spec.workdir else None
    return client.submit(spec, pack, secrets.token_hex(16))


def _until_running(client: "Client", job: str) -> None:
    """Says what it waits for. Raises Conflict for one that ends before."""
    said = ""
    while (view := client.job(job)).state in ("pending", "starting"):
        why = client.why(job).sentence
        if why != said and view.state == "pending":
            _note(f"{job} waits: {why}")
            said = why
        time.sleep(LOOK_S)
    if view.state != "running":
        raise Conflict("job", job, f"is {view.state}: {view.detail or 'see `phalanx describe`'}")


def _until_it_listens(client: "Client", job: str) -> "NotebookPlace":
    while True:
        try:
            return client.notebook(job)
        except Conflict:
            view = client.job(job)
            if view.state != "running":
                raise Conflict("job", job, f"is {view.state}: {_words(client, view)}") from None
        time.sleep(LOOK_S)


def _words(client: "Client", view: "JobView") -> str:
    """Why it ended, with what its process said last where that is no more than a line or two."""
    return view.detail or client.why(view.id).sentence


def _stay(client: "Client", job: str, key: bytes | None) -> int:
    """In the terminal, also over connections that break; the exit code."""
    from phalanx.show.cli.joined import Joined

    channel = client.channel(job, "attach")
    while True:
        left = Joined(channel, key, terminal=True).run()
        if left.detached:
            _note(f"Left; {job} goes on. `phalanx attach {job}` comes back, `phalanx cancel {job}` ends it.")
            return Exit.DETACHED
        if left.code is not None:
            return left.code
        _note(f"The connection broke ({left.lost}); coming back.")
        channel = _back(client, job)


def _back(client: "Client", job: str) -> Any:
    """The channel anew. Raises the last error when there is none for long."""
    until = client.now_s() + BACK_S_MAX
    while True:
        try:
            return client.channel(job, "attach")
        except (ServerUnreachable, Conflict):
            if client.now_s() > until or _is_over(client, job):
                raise
        time.sleep(LOOK_S * 5)


def _is_over(client: "Client", job: str) -> bool:
    try:
        return client.job(job).state not in ("running", "starting")
    except ServerUnreachable:
        return False


def _ports(text: str) -> tuple[int, int]:
    """(the job's, the one here; the same where it is not said)."""
    port, colon, local = text.partition(":")
    given = [port, local] if colon else [port]
    if not all(one.isascii() and one.isdecimal() and len(one) < 6 for one in given) or not 1 <= int(port) <= 65535:
        raise SpecError("PORT[:LOCAL]", text, "write a port from 1 to 65535, such as 8888 or 8888:9000; a LOCAL of 0 is any")
    return int(port), int(local if colon else port)


def _say_where(job: str, key: bytes | None) -> None:
    leaves = f"Ctrl-{chr(key[0] + 64)} leaves it; " if key else ""
    _note(f"{job}: {leaves}`phalanx attach {job}` comes back to it.")


def _complain(error: PhalanxError) -> None:
    from phalanx.show.cli.text import error_text

    _note(f"A connection was refused: {error_text(error)}")


def _note(text: str) -> None:
    from phalanx.show.cli.text import note

    note(text)


def _wait_for_leaving() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        leave(Exit.DETACHED)
