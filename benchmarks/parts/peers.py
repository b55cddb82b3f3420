"""Peers that start many short jobs, each where it is installed; None where it is not. Each is started for this alone, on loopback
and in a folder of its own, and ended again.

HyperQueue: `pip install 'phalanx[bench]'`. Slurm: Debian's `slurm-wlm` and `munge`, as root. Ray: `pip install ray`, in this
Python or on PYTHONPATH.
"""

import contextlib
import getpass
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import launch  # type: ignore[import-not-found]  # of the benchmarks' folder, which is on the path of whoever imports this

LIMIT_S: Final = 600.0
UP_S_MAX: Final = 60.0
RAY: Final = Path(__file__).with_name("ray_tasks.py")
SLURM: Final = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo")
CONF: Final = """
ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
MaxArraySize=100001
MaxJobCount=100000
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,default_queue_depth=10000,defer
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={slots} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""The lowest cost that it has: no accounting, no cgroups, nothing that watches tasks."""


def hyperqueue(count: int, slots: int) -> float | None:
    """Tasks a second of one job, kept in memory."""
    try:
        import hyperqueue as api  # type: ignore[import-not-found, unused-ignore]
        from hyperqueue.cluster import LocalCluster, WorkerConfig  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    with tempfile.TemporaryDirectory(prefix="phalanx-hq-") as folder:
        with launch.stdout_is_stderr():
            cluster = LocalCluster(f"{folder}/server", WorkerConfig(cores=slots))
            client = cluster.client()
        try:
            job = api.Job(default_workdir=folder)
            for number in range(count):
                job.program(["/bin/true"], stdout=f"{folder}/{number}.out", stderr=f"{folder}/{number}.err")
            start_s = time.monotonic()
            client.wait_for_jobs([client.submit(job)])
            return count / (time.monotonic() - start_s)
        finally:
            cluster.stop()


def ray(count: int) -> float | None:
    """Tasks a second, each of which runs the program in a resident worker: as many of these as there are cores."""
    done = subprocess.run([sys.executable, str(RAY), str(count)], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def slurm(count: int, slots: int) -> float | None:
    """Batch jobs a second, of one array."""
    if os.geteuid() != 0 or not all(shutil.which(one, path=_path()) for one in SLURM):
        return None
    with tempfile.TemporaryDirectory(prefix="phalanx-slurm-") as folder, _cluster(Path(folder), slots) as environ:
        start_s = time.monotonic()
        script = Path(folder, "job.sh")
        script.write_text("#!/bin/sh\nexec /bin/true\n")
        _ask(environ, "sbatch", f"--array=1-{count}", "--output=/dev/null", str(script))
        while _ask(environ, "squeue", "--noheader", "--array", "--states=all", "--format=%t").replace("CD", "").strip():
            if time.monotonic() - start_s > LIMIT_S:
                raise SystemExit("Slurm did not finish its jobs")
            time.sleep(0.2)
        return count / (time.monotonic() - start_s)


@contextlib.contextmanager
def _cluster(folder: Path, slots: int) -> Iterator[dict[str, str]]:
    """The environment for its commands, once its node is idle."""
    host = socket.gethostname().partition(".")[0]
    (folder / "key").write_bytes(secrets.token_bytes(128))
    (folder / "key").chmod(0o400)
    folder.chmod(0o755)  # munge looks at the folders above its socket
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    conf = folder / "slurm.conf"
    conf.write_text(CONF.format(host=host, folder=folder, user=getpass.getuser(), slots=slots, control=_port(), node=_port()))
    environ = {**os.environ, "SLURM_CONF": str(conf), "PATH": _path()}
    files = [f"--{name}={folder}/munge.{kind}" for name, kind in (("socket", "socket"), ("pid-file", "pid"), ("log-file", "log"))]
    seed = f"--seed-file={folder}/munge.seed"
    commands: list[Sequence[str]] = [
        ("munged", "--foreground", "--force", f"--key-file={folder}/key", seed, *files),
        ("slurmctld", "-D", "-i", "-f", str(conf)),
        ("slurmd", "-D", "-f", str(conf), "-N", host),
    ]
    processes = []
    try:
        for command in commands:
            log = (folder / f"{command[0]}.out").open("wb")
            processes.append(subprocess.Popen(command, env=environ, stdout=log, stderr=log))
            log.close()
            time.sleep(1)
        _until_idle(environ, folder)
        yield environ
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


def _until_idle(environ: dict[str, str], folder: Path) -> None:
    end_s = time.monotonic() + UP_S_MAX
    while "idle" not in _ask(environ, "sinfo", "--noheader", "--format=%t", check=False):
        if time.monotonic() > end_s:
            logs = "\n".join(file.read_text(errors="replace")[-500:] for file in sorted(folder.glob("*.log")))
            raise SystemExit(f"Slurm did not come up: {logs}")
        time.sleep(0.2)


def _ask(environ: dict[str, str], *words: str, check: bool = True) -> str:
    return subprocess.run(words, env=environ, capture_output=True, text=True, check=check, timeout=60).stdout


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
