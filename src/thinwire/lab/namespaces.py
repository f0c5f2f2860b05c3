"""Holds a lab's namespaces, and runs commands inside them: a script, apart from the package.

It runs as a process of its own, because namespaces belong to processes and a new user namespace needs a process
without threads. It imports nothing but the standard library, to start within milliseconds.

``hold`` reads a plan (see topology.py) as one line of JSON from its input, builds the network, answers with one line of
JSON, and waits. All namespaces are anonymous: they exist as long as it runs, and it runs until its input ends, which
also happens when the lab's process is killed. It is the first process of a process namespace, so the kernel then kills
every process that was started in the lab, wherever that process may have hidden.

``enter KEEPER_PID NAMESPACE_FD COMMAND...`` runs a command in one of these namespaces and passes its exit status on.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

# <linux/sched.h>, <linux/mount.h>, <linux/prctl.h>
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_REC = 0x4000
MS_SLAVE = 0x80000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def hold() -> None:
    """Build the network that the input describes and keep it until the input ends."""
    plan = json.loads(sys.stdin.readline())
    try:
        _leave_namespaces()
        child = os.fork()  # a new process namespace begins with the next child
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        pid = int(str(Path("/proc/self").readlink()))  # as processes outside see it; getpid() is 1
        _mount_proc()
        namespaces = _build(plan)
    except OSError as error:
        print(json.dumps({"errno": error.errno, "error": error.strerror}), flush=True)
        return
    except subprocess.CalledProcessError as error:
        print(json.dumps({"command": " ".join(error.cmd), "error": error.stderr.strip()}), flush=True)
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans end up here; the kernel buries them
    print(json.dumps({"pid": pid, "namespaces": namespaces}), flush=True)
    sys.stdin.readline()


def _leave_namespaces() -> None:
    try:
        _call("unshare", CLONE_NEWNS | CLONE_NEWPID)
    except PermissionError:
        uid, gid = os.getuid(), os.getgid()
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def _mount_proc() -> None:
    _call("mount", b"none", b"/", None, MS_REC | MS_SLAVE, None)
    try:
        _call("mount", b"proc", b"/proc", b"proc", 0, None)
    except PermissionError:
        # Containers that mask parts of /proc forbid it. The old /proc shows each process its own entry all the same.
        return


def _build(plan: dict[str, Any]) -> list[int]:
    """Make the network namespaces; returns the workers' file descriptors and ends in the switch's namespace."""
    switch = _new_network()
    _run(plan["switch"], switch)
    workers = []
    for worker in plan["workers"]:
        workers.append(_new_network())
        _run(worker["inside"], switch)
        _call("setns", switch, CLONE_NEWNET)
        _run(worker["outside"], switch)
    return workers


def _new_network() -> int:
    _call("unshare", CLONE_NEWNET)
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def _run(commands: list[str], switch: int) -> None:
    for command in commands:
        arguments = command.format(switch=f"/proc/self/fd/{switch}").split()
        subprocess.run(arguments, check=True, capture_output=True, text=True, pass_fds=[switch])


def enter(keeper: str, network: str, command: list[str]) -> None:
    """Run a command in a lab's namespaces; exit with its status, 128 + n if signal n ended it."""
    directory = Path.cwd()  # joining a mount namespace moves to its root
    paths = [f"/proc/{keeper}/fd/{network}", f"/proc/{keeper}/ns/mnt", f"/proc/{keeper}/ns/pid"]
    user = f"/proc/{keeper}/ns/user"
    if not Path(user).samefile("/proc/self/ns/user"):
        paths.insert(0, user)  # first: it gives the right to join the others
    for namespace in [os.open(path, os.O_RDONLY) for path in paths]:
        _call("setns", namespace, 0)
    os.chdir(directory)

    # Signals go to the whole process group: the command decides what to make of them, this process waits for it.
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in signals:
        signal.signal(number, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        _call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (*signals, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two, commands expect them
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold()
    else:
        enter(sys.argv[2], sys.argv[3], sys.argv[4:])
