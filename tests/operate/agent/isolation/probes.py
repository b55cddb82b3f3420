"""What a job of one team may try against another's and against the platform. Run as a rank, by its source: standard library only.

Each attempt is a function whose name says what it would have got, and which returns something true when it got it. The target's
facts come in the variable TARGET. Everything caught is printed as one JSON object, name to what came of it.
"""

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

CANARY = "-".join(("canary", "of", "b"))  # never whole in this source, which other processes can read as an argument
TARGET: dict[str, Any] = json.loads(os.environ["TARGET"])
LIBC = ctypes.CDLL(None, use_errno=True)
HOME, B = Path(TARGET["home"]), Path(TARGET["folder"])


def holds(path: Path | str) -> bool:
    with Path(path).open("rb") as file:
        return CANARY.encode() in file.read(1 << 20)


def called(result: int) -> bool:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True


def environs(pids: list[int]) -> bool:
    """By the numbers that the machine gives, and by any that is seen."""
    seen = [int(one.name) for one in Path("/proc").iterdir() if one.name.isdigit() and int(one.name) != os.getpid()]
    for pid in (*pids, *seen):
        try:
            if holds(f"/proc/{pid}/environ"):
                return True
        except OSError:
            continue
    return False


def is_program(pid: int, word: str) -> bool:
    """Whether that number is the one meant: in another namespace it is somebody else's."""
    return word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()


def traced(pid: int, word: str) -> bool:
    if not is_program(pid, word):
        return False
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    called(LIBC.ptrace(0x4206, pid, None, None))  # PTRACE_SEIZE, which stops nothing; it ends with this process
    return True


def signalled(pid: int, word: str) -> bool:
    if not is_program(pid, word):
        return False
    os.kill(pid, 0)
    return True


# What is B's


def the_work_folder() -> bool:
    return holds(B / "work" / "notes.txt")


def a_file_in_the_work_folder() -> bool:
    Path(B / "work" / "planted").write_text("by a")
    return True


def a_checkpoint() -> bool:
    return holds(B / "checkpoints" / "shard")


def the_names_of_other_jobs() -> bool:
    return B in B.parent.iterdir()


def a_log() -> bool:
    return holds(Path(TARGET["attempt"]) / "rank-0.log")


def an_artifact() -> bool:
    return holds(Path(TARGET["attempt"]) / "artifacts" / "result")


def the_order_of_its_shim() -> bool:
    return Path(TARGET["attempt"], "shim.json").read_text() != ""


def a_secret_in_its_environment() -> bool:
    return environs([TARGET["pid"]])


def its_memory_by_proc() -> bool:
    with Path(f"/proc/{TARGET['pid']}/mem").open("rb"):
        return is_program(TARGET["pid"], "shared_by_b")


def its_temporary_files() -> bool:
    return holds("/tmp/phalanx-test-of-b")


def shared_memory_by_name() -> bool:
    return holds("/dev/shm/phalanx-test-of-b")


def shared_memory_of_system_v() -> bool:
    handle = LIBC.shmget(TARGET["key"], 0, 0)
    LIBC.shmat.restype = ctypes.c_void_p
    at = LIBC.shmat(handle, None, 0o10000)  # SHM_RDONLY
    return handle >= 0 and at not in (None, ctypes.c_void_p(-1).value) and ctypes.string_at(at, len(CANARY)).decode() == CANARY


def an_abstract_socket() -> bool:
    with socket.socket(socket.AF_UNIX) as call:
        call.connect("\0phalanx-test-of-b")
        return True


def the_socket_of_its_shim() -> bool:
    with socket.socket(socket.AF_UNIX) as call:
        call.connect(TARGET["shim_socket"])
        return True


def a_trace_of_its_rank() -> bool:
    return traced(TARGET["pid"], "shared_by_b")


def a_signal_to_its_rank() -> bool:
    return signalled(TARGET["pid"], "shared_by_b")


# What is the platform's


def the_users_token() -> bool:
    return holds(HOME / "token")


def the_nodes_token() -> bool:
    return holds(HOME / "node-token")


def the_database() -> bool:
    return holds(HOME / "phalanx.db")


def the_key_of_secrets() -> bool:
    return holds(HOME / "secret.key")


def the_key_of_gangs() -> bool:
    return holds(HOME / "gang.key")


def a_file_in_its_home() -> bool:
    (HOME / "run" / "planted").write_text("by a")
    return True


def the_environment_of_the_agent() -> bool:
    return environs([TARGET["agent"]])


def the_agents_right_to_stores() -> bool:
    return CANARY in os.environ.get("AWS_SECRET_ACCESS_KEY", "")


def a_trace_of_the_agent() -> bool:
    return traced(TARGET["agent"], "agent_program")


def a_signal_to_the_agent() -> bool:
    return signalled(TARGET["agent"], "agent_program")


def a_signal_to_the_shim_of_another() -> bool:
    return signalled(TARGET["shim"], "shim.py")


# Ways out


def a_link_in_its_work_folder() -> bool:
    Path("link").symlink_to(HOME / "secret.key")
    return holds("link")


def a_link_to_another_job() -> bool:
    Path("other").symlink_to(B / "work")
    return holds("other/notes.txt")


def another_user() -> bool:
    os.setresuid(0, 0, 0)
    os.setgroups([0])
    return os.geteuid() == 0


def a_program_that_runs_as_root() -> bool:
    """One that waits for a password: who it is then is seen from outside."""
    program = next(path for path in ("/usr/bin/passwd", "/usr/bin/su") if Path(path).stat().st_mode & stat.S_ISUID)
    child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            if program.encode() in Path(f"/proc/{child.pid}/cmdline").read_bytes():
                facts = dict(line.split(":", 1) for line in Path(f"/proc/{child.pid}/status").read_text().splitlines())
                return facts["Uid"].split()[1] == "0"
        return False
    finally:
        child.kill()


def the_root_of_the_first_process() -> bool:
    return holds(f"/proc/1/root{HOME}/secret.key")


def its_own_root() -> bool:
    return holds(f"/proc/self/root{HOME}/secret.key") or holds(f"/proc/thread-self/root{HOME}/secret.key")


def a_working_folder_above() -> bool:
    os.chdir(f"{'../' * 40}{str(HOME).lstrip('/')}")
    return holds("secret.key")


def a_descriptor_that_was_left_open() -> bool:
    """Of a folder of the machine as it is without isolation."""
    for path in Path("/proc/self/fd").iterdir():
        try:
            if stat.S_ISDIR(path.stat().st_mode) and holds(f"{path}/../{HOME}/secret.key"):
                return True
        except OSError:
            continue
    return "AWS_SECRET_ACCESS_KEY" in os.environ and holds(HOME / "secret.key")  # without isolation none is needed


def a_mount() -> bool:
    Path("mounted").mkdir()
    return called(LIBC.mount(b"tmpfs", b"mounted", b"tmpfs", 0, None))


def what_lies_under_a_mount() -> bool:
    """Taken away, if it may: under isolation the home is under one."""
    LIBC.umount2(os.fsencode(HOME), 2)
    return holds(HOME / "secret.key")


def namespaces_of_its_own() -> bool:
    return called(LIBC.unshare(0x00020000))  # CLONE_NEWNS


def a_user_namespace() -> bool:
    return called(LIBC.unshare(0x10000000))  # CLONE_NEWUSER, which any user may have elsewhere


def the_namespace_of_the_first_process() -> bool:
    handle = os.open("/proc/1/ns/uts", os.O_RDONLY)
    return called(LIBC.setns(handle, 0))


def another_root() -> bool:
    os.chroot("/")
    return True


def a_device_made_by_itself() -> bool:
    os.mknod("disk", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    return os.open("disk", os.O_RDONLY) >= 0


def a_device_of_the_machine() -> bool:
    own = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "stdin", "stdout", "stderr", "fd", "console", "core"}
    for entry in os.scandir("/dev"):
        try:
            if entry.name not in own and stat.S_IFMT(entry.stat().st_mode) in (stat.S_IFCHR, stat.S_IFBLK):
                return os.open(entry.path, os.O_RDONLY | os.O_NONBLOCK) >= 0
        except OSError:
            continue
    return False


def packets_of_others() -> bool:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW):
        return True


def a_keyring() -> bool:
    number = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
    return bool(LIBC.syscall(ctypes.c_long(number), 0, ctypes.c_int(-4), 1) > 0)  # keyctl(GET_KEYRING_ID, the user's)


def came_of(attempt: Any) -> str:
    """In a process of its own: what one changes of itself is no help, or harm, to the next."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            said = "got it" if attempt() else "nothing"
        except (OSError, StopIteration, ValueError) as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(tell, said.encode())
            os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said


HELPERS = {"holds", "called", "environs", "is_program", "traced", "signalled", "came_of", "main"}


def main() -> None:
    found = {name: one for name, one in list(globals().items()) if callable(one) and getattr(one, "__module__", "") == __name__}
    caught = {name: came_of(one) for name, one in found.items() if name not in HELPERS}
    sys.stdout.write(json.dumps(caught) + "\n")
    sys.stdout.flush()
    signal.pause()


if __name__ == "__main__":
    main()
