"""Runs a program that nobody trusts. A script of its own, `python -I -S launcher.py JOB STATUS`: the job is JSON in the
file of the first descriptor (see ``relax_core.rewards.sandbox.run``), and what hinders it is written to the second.

Guarantee: with ``isolated`` the program is in namespaces of its own: it has no network, sees no process but its own, no
file but a few folders of the system to read and a folder in memory to write, and belongs to a user who owns nothing;
where the kernel does not give these, the program is not run. In any case it is under the limits of the job, its
environment is empty, and it ends with this process, together with all that it started.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

_FILES, _FOLDER_MODE = 0o644, 0o755
_NOBODY = 65534
_FOLDER = "/box"
"""Where an isolated program begins."""

_USER = 0x10000000
_NAMESPACES = 0x20000 | 0x20000000 | 0x40000000 | 0x8000000 | 0x4000000  # mounts, processes, network, IPC, names

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = (
    *(1, 2, 4, 8, 32, 4096, 16384),
    1 << 18,
)
_MNT_DETACH = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_SETTINGS = {
    "user.max_user_namespaces": "0",
    "kernel.unprivileged_userns_clone": "0",
    "kernel.apparmor_restrict_unprivileged_userns": "1",
}
"""Settings of the kernel, and the value with which users get no namespaces."""

_libc = ctypes.CDLL(None, use_errno=True)


class NotIsolatedError(Exception):
    """The kernel does not give what isolation takes."""


def _call(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [word.encode() if word else None for word in (source, target, kind)]
    _call(f"mount {target}", _libc.mount(*words, ctypes.c_ulong(flags), data.encode() or None))


def _prctl(option: int, value: int) -> None:
    _call("prctl", _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def _end_with_parent(alive: Callable[[], bool]) -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not alive():
        os._exit(1)


# Namespaces


def _isolate(wanted: int) -> tuple[int, bool]:
    """Enter new namespaces.

    Args:
        wanted: the user that the program is to be, where that can be chosen.

    Returns:
        Number of the user that the program is, and whether this process has to become that user yet.
    """
    other = _other_user(wanted) if os.geteuid() == 0 else None
    if other is None:
        uid, gid = os.geteuid(), os.getegid()
        _call("unshare", _libc.unshare(_NAMESPACES | _USER))
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{_NOBODY} {uid} 1")
        _write("/proc/self/gid_map", f"{_NOBODY} {gid} 1")
        return _NOBODY, False
    if _libc.unshare(_NAMESPACES) == 0:
        return other, True
    if ctypes.get_errno() not in (errno.EPERM, errno.EINVAL):
        _call("unshare", -1)
    _continue_mapped(other)
    return 1, True


def _other_user(wanted: int) -> int | None:
    """A user that root may become: the wanted one, else the last one that there is; None: there is none but root."""
    with open("/proc/self/uid_map") as file:
        ranges = [(int(first), int(first) + int(count)) for first, _, count in map(str.split, file)]
    if any(first <= wanted < end for first, end in ranges):
        return wanted
    return max((end - 1 for _, end in ranges), default=0) or None


def _continue_mapped(other: int) -> None:
    """Go on as a child in new namespaces, where root is 0 and ``other`` is 1: root alone may map two users, and only
    from outside."""
    parent = os.getpid()
    (ready, says_ready), (go, says_go) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        _end_with_parent(lambda: os.getppid() == parent)
        _call("unshare", _libc.unshare(_NAMESPACES | _USER))
        os.write(says_ready, b".")
        os.close(says_go)
        if os.read(go, 1) != b".":
            raise OSError(errno.EPERM, "the users cannot be mapped")
        return
    os.close(says_ready)
    if os.read(ready, 1) == b".":
        try:
            for name in ("uid_map", "gid_map"):
                _write(f"/proc/{child}/{name}", f"0 0 1\n1 {other} 1")
            os.write(says_go, b".")
        except OSError:
            pass
    os.close(says_go)
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    os._exit(_exit_status(os.waitpid(child, 0)[1]))


def _reason(error: Exception) -> str:
    """What the kernel says, and the settings by which it may have said so."""
    if not isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    told = f"{error.strerror}, {error.filename}" if error.filename else str(error.strerror)
    full = error.errno == errno.ENOSPC  # as many namespaces as are allowed
    settings = []
    for name, forbids in _SETTINGS.items():
        with contextlib.suppress(OSError), open(f"/proc/sys/{name.replace('.', '/')}") as file:
            value = file.read().strip()
            if value == forbids or (full and name.startswith("user.")):
                settings.append(f"{name} is {value}")
    return f"{told} ({', '.join(settings)})" if settings else told


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _make_root(root: str, job: dict[str, Any], uid: int) -> None:
    """A root folder in memory: what the interpreter needs, to read, and a folder to write to."""
    _mount("", "/", "", _MS_REC | _MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", _MS_NOSUID, f"mode=755,size=1m,nr_inodes=4096,uid={uid},gid={uid}")
    for path in job["visible"]:
        _show(path, root + path, _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    for path in ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"):
        _show(path, root + path, _MS_NOSUID)
    for path in ("/proc", _FOLDER):
        os.mkdir(root + path)
    if not os.path.lexists(f"{root}/tmp"):  # else the interpreter lives there
        os.symlink(_FOLDER[1:], f"{root}/tmp")
    with contextlib.suppress(OSError):  # in a container that hides parts of its own there is none
        _mount("proc", f"{root}/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    size = int(job["limits"]["disk"])
    data = f"mode=700,size={size},nr_inodes=1024,uid={uid},gid={uid}"
    _mount("tmpfs", root + _FOLDER, "tmpfs", _MS_NOSUID | _MS_NODEV, data)
    os.chdir(root)
    _call("pivot_root", _libc.syscall(ctypes.c_long(_PIVOT_ROOT[platform.machine()]), b".", b"."))
    _call("umount", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")
    _mount("", "/", "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID)


def _show(path: str, target: str, flags: int) -> None:
    """Make a file or folder visible at another place, under the flags."""
    if not os.path.lexists(path) or os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), _FOLDER_MODE, exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target, _FOLDER_MODE)
    else:
        os.close(os.open(target, os.O_CREAT, _FILES))
    _mount(path, target, "", _MS_BIND | _MS_REC)
    kept = os.statvfs(target).f_flag & (_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)  # these may not be taken away
    _mount("", target, "", _MS_REMOUNT | _MS_BIND | flags | kept)


# The program


def _limit(limits: dict[str, Any]) -> None:
    for kind, value in (
        (resource.RLIMIT_CPU, int(limits["cpu"])),
        (resource.RLIMIT_AS, int(limits["memory"])),
        (resource.RLIMIT_FSIZE, int(limits["disk"])),
        (resource.RLIMIT_NPROC, int(limits["processes"])),
        (resource.RLIMIT_NOFILE, int(limits["files"])),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))


def _become(uid: int) -> None:
    """A user who owns nothing and may nothing."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def _execute(job: dict[str, Any], folder: str) -> None:
    os.chdir(folder)
    for name, text in job["files"].items():
        with open(name, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
    if job["stdin"] is not None:
        descriptor = os.open(job["stdin"], os.O_RDONLY)
        os.dup2(descriptor, 0)
        os.close(descriptor)
    argv = [word.replace("{folder}", folder) for word in job["argv"]]
    _limit(job["limits"])
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.execve(argv[0], argv, {})


def _first(job: dict[str, Any], root: str, uid: int, alive: Callable[[], bool], hindered: Callable[..., None]) -> None:
    """The first process of the namespaces, or the leader of the group without them: it starts the program, waits for
    it, and takes everything along when it ends."""
    os.setsid()
    _end_with_parent(alive)
    folder = job["folder"]
    if job["isolated"]:
        try:
            _make_root(root, job, uid)
        except (OSError, KeyError) as error:
            raise NotIsolatedError(_reason(error)) from error
        folder = _FOLDER
    if job["as_other"]:
        if not job["isolated"]:
            os.chown(folder, uid, uid)
        _become(uid)
        _end_with_parent(alive)  # forgotten when the user changes
    _prctl(_PR_SET_DUMPABLE, 0)
    program = os.fork()
    if program == 0:
        try:
            _prctl(_PR_SET_DUMPABLE, 1)
            _execute(job, folder)
        except BaseException as error:
            hindered(error)
        os._exit(1)
    for descriptor in (0, 1, 2, *job["passed"]):  # whoever reads them sees their end when the program ends
        os.close(descriptor)
    while True:
        pid, status = os.wait()
        if pid == program:
            os._exit(_exit_status(status))


def _exit_status(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _kill_user(uid: int) -> None:
    """End every process of a user who owns nothing else."""
    child = os.fork()
    if child == 0:
        os.setresuid(uid, uid, uid)
        try:
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def main(descriptor: int, hindered: Callable[..., None]) -> int:
    """Run the job and return the program's exit status; 128 and more: the signal that ended it.

    Args:
        descriptor: of the job.
        hindered: is told what goes wrong in a child.
    """
    parent = os.getppid()
    _end_with_parent(lambda: os.getppid() == parent)
    with open(descriptor, encoding="utf-8", errors="surrogatepass") as file:
        job: dict[str, Any] = json.load(file)
    root = os.path.dirname(os.path.abspath(__file__))
    # A user of its own for each job where that can be: its processes are counted and ended by themselves.
    uid = (_other_user(job["uid"]) if os.geteuid() == 0 else None) or 0
    job["as_other"] = uid != 0
    if job["isolated"]:
        try:
            uid, job["as_other"] = _isolate(job["uid"])
        except OSError as error:
            raise NotIsolatedError(_reason(error)) from error
    reads, writes = os.pipe()
    first = os.fork()
    if first == 0:
        os.close(writes)
        os.set_blocking(reads, False)

        def alive() -> bool:
            try:
                return os.read(reads, 1) != b""
            except BlockingIOError:
                return True

        try:
            _first(job, root, uid, alive, hindered)
        except BaseException as error:
            hindered(error)
        os._exit(1)
    for descriptor in (0, 1, 2, *job["passed"]):
        os.close(descriptor)
    _, status = os.waitpid(first, 0)
    if not job["isolated"]:
        if job["as_other"]:
            _kill_user(uid)
        else:
            with contextlib.suppress(OSError):
                os.killpg(first, signal.SIGKILL)
    return _exit_status(status)


def _run(descriptor: int, status: int) -> int:
    os.set_inheritable(status, False)  # the program does not have it

    def hindered(error: BaseException) -> None:
        kind = "isolation" if isinstance(error, NotIsolatedError) else type(error).__name__
        os.write(status, f"{kind}: {error}".encode(errors="replace")[:1000])

    try:
        return main(descriptor, hindered)
    except BaseException as error:
        hindered(error)
        return 1


if __name__ == "__main__":
    os._exit(_run(int(sys.argv[1]), int(sys.argv[2])))
