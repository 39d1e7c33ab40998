"""Locks the calling process up: it can compute and read what it was shown, and nothing else.  Linux 5.13 or later.

Four walls, each of which holds by itself:
- Landlock: no path but the given ones can be opened; from ABI 4 on no TCP, from 6 on no abstract sockets or signals.
- seccomp: the system calls that computing needs; all others fail (processes, threads, sockets, signals, mounts).
- capabilities: none, even for root, and none to be had again (no_new_privs).
- rlimits: memory, seconds of CPU, no file is written.

Standard library only and without imports of our own: the worker loads this file by its path.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import sys
from collections.abc import Iterable

MACHINES = ("x86_64", "aarch64")

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CLONE3 = 435
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# What computing needs, by number (x86_64, aarch64); None where a machine does not have it.
_SYSCALLS: dict[str, tuple[int | None, int | None]] = {
    # memory
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216),
    "madvise": (28, 233), "membarrier": (324, 283),
    # files that are open, or that Landlock lets it open
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "lseek": (8, 62),
    "open": (2, None), "openat": (257, 56), "fstat": (5, 80), "stat": (4, None), "lstat": (6, None),
    "newfstatat": (262, 79), "statx": (332, 291), "access": (21, None), "faccessat": (269, 48),
    "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61),
    "getcwd": (79, 17), "dup": (32, 23), "poll": (7, None), "ppoll": (271, 73), "select": (23, None),
    "pselect6": (270, 72),
    # an event loop within the process
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "pipe2": (293, 59), "sendto": (44, 206), "recvfrom": (45, 207),
    # time and chance
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrandom": (318, 278),
    # itself
    "exit": (60, 93), "exit_group": (231, 94), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178),
    "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177), "uname": (63, 160),
    "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "futex": (202, 98), "rseq": (334, 293), "set_robust_list": (273, 99),
    "set_tid_address": (218, 96), "arch_prctl": (158, None), "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
}  # fmt: skip
# Allowed with some arguments only: which values each of these arguments may have.
_PARTLY: dict[str, tuple[tuple[int | None, int | None], dict[int, tuple[int, ...]]]] = {
    "fcntl": ((72, 25), {1: (0, 1, 2, 3, 1030)}),  # DUPFD, GETFD, SETFD, GETFL, DUPFD_CLOEXEC: no owner, no signal
    "ioctl": ((16, 29), {1: (0x5401, 0x5421, 0x5450, 0x5451)}),  # is it a terminal, blocking, close on exec
    "prlimit64": ((302, 261), {0: (0,)}),  # of itself
    # Two ends of one stream (AF_UNIX, SOCK_STREAM and flags): a datagram could be sent to somebody else's socket.
    "socketpair": ((53, 199), {0: (1,), 1: (0x1, 0x801, 0x80001, 0x80801)}),
}
_CLOSE = (3, 57)


class JailError(OSError):
    """The process could not be locked up."""


def unsupported() -> str:
    """Why no process can be locked up here; "" if one can."""
    if sys.platform != "linux":
        return f"it needs Linux, and this is {sys.platform}"
    if platform.machine() not in MACHINES or sys.maxsize < 2**32:
        return f"it knows the processors {' and '.join(MACHINES)}, and this is {platform.machine()}"
    if landlock_abi() < 1:
        return "this kernel has no Landlock (Linux 5.13 or later has, unless it is switched off)"
    return ""


def landlock_abi() -> int:
    """The version of the kernel's Landlock; 0 where there is none."""
    try:
        found: int = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except (OSError, AttributeError):
        return 0
    return max(found, 0)


def lock_up(readable: Iterable[str], memory: int, cpu_seconds: int, kept: Iterable[int]) -> None:
    """Lock this process up for good.

    readable: files and folders that it may read.  memory: bytes of address space.  kept: descriptors that can't be
    closed or replaced from now on.

    Raises:
        JailError: a wall could not be put up, or does not hold; the process must not run foreign code then.
    """
    _limit(memory, cpu_seconds)
    _drop_capabilities()
    _prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    _prctl(4, 0)  # PR_SET_DUMPABLE: nobody of the same user looks into it, or it into itself
    _landlock(readable)
    _seccomp(kept)
    _try_the_doors()


def _limit(memory: int, cpu_seconds: int) -> None:
    import resource  # there is none on Windows, where `unsupported` is asked all the same

    for what, value in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_MEMLOCK, 0),
    ):
        try:
            resource.setrlimit(what, (value, value))
        except (ValueError, OSError) as error:
            raise JailError(f"setrlimit {what}: {error}") from None


def _drop_capabilities() -> None:
    for capability in range(64):
        if _libc().prctl(24, capability, 0, 0, 0) < 0:  # PR_CAPBSET_DROP: fails where there are no more, or for no root
            break
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    none = (ctypes.c_uint32 * 6)()
    _check(_libc().syscall(_CAPSET[platform.machine()], header, none), "capset")


def _landlock(readable: Iterable[str]) -> None:
    abi = landlock_abi()
    paths = 0x1FFF | (0x2000 if abi >= 2 else 0) | (0x4000 if abi >= 3 else 0) | (0x8000 if abi >= 5 else 0)
    ports = 3 if abi >= 4 else 0  # bind, connect
    scopes = 3 if abi >= 6 else 0  # abstract sockets, signals
    attributes = (ctypes.c_uint64 * 3)(paths, ports, scopes)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    rules = _check(
        _libc().syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), ctypes.c_uint32(0)),
        "landlock_create_ruleset",
    )
    try:
        for path in readable:
            _allow(rules, path)
        _check(_libc().syscall(_RESTRICT_SELF, rules, ctypes.c_uint32(0)), "landlock_restrict_self")
    finally:
        os.close(rules)


def _allow(rules: int, path: str) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        access = 0x4 | (0x8 if os.path.isdir(path) else 0)  # noqa: PTH112  READ_FILE, READ_DIR
        rule = access.to_bytes(8, sys.byteorder) + opened.to_bytes(4, sys.byteorder)  # packed
        _check(
            _libc().syscall(_ADD_RULE, rules, ctypes.c_int(1), rule, ctypes.c_uint32(0)), f"landlock_add_rule {path}"
        )
    finally:
        os.close(opened)


# -------------------------------------------------------------------------------------------------------------- seccomp
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

Step = tuple[int, int, int, int]  # code, jump if true, jump if false, value


def _seccomp(kept: Iterable[int]) -> None:
    steps = _program(platform.machine(), kept)
    filters = b"".join(
        code.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)
        for code, yes, no, value in steps
    )
    buffer = ctypes.create_string_buffer(filters, len(filters))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filters", ctypes.c_void_p))

    program = Program(len(steps), ctypes.addressof(buffer))
    _check(_libc().prctl(22, 2, ctypes.byref(program), 0, 0), "seccomp")  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _program(machine: str, kept: Iterable[int]) -> list[Step]:
    """The filter: of `struct seccomp_data` it sees the number (0), the machine (4) and the arguments (16, 24, ...)."""
    column = MACHINES.index(machine)
    steps: list[Step] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, 0),
    ]
    if machine == "x86_64":  # the numbers of x32 are the same calls once more
        steps += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _KILL)]
    for numbers in _SYSCALLS.values():
        number = numbers[column]
        if number is not None:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    for numbers, conditions in _PARTLY.values():
        steps += _when(numbers[column], conditions, _ALLOW, otherwise=_FAIL | errno.EPERM)
    steps += _when(_CLOSE[column], {0: tuple(kept)}, _FAIL | errno.EPERM, otherwise=_ALLOW)
    # The C library falls back to `clone` for a call that it is told does not exist.
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    return [*steps, (_RETURN, 0, 0, _FAIL | errno.EPERM)]


def _when(number: int | None, conditions: dict[int, tuple[int, ...]], then: int, otherwise: int) -> list[Step]:
    """`then` where each argument has one of its values, else `otherwise`; nothing for other system calls."""
    if number is None:
        return []
    body: list[Step] = []
    for argument, values in conditions.items():
        body.append((_LOAD, 0, 0, 16 + 8 * argument + (4 if sys.byteorder == "big" else 0)))
        body += [(_EQUAL, len(values) - i, 0, value) for i, value in enumerate(values)]  # on to the next argument
        body.append((_RETURN, 0, 0, otherwise))
    body.append((_RETURN, 0, 0, then))
    return [(_EQUAL, 0, len(body), number), *body]


# ---------------------------------------------------------------------------------------------------------------- parts
def _try_the_doors() -> None:
    """Refuse to go on where a wall does not hold: better no sandbox than one that is not."""
    for path in ("/", "/etc/passwd", "/proc/self/environ"):
        try:
            os.close(os.open(path, os.O_RDONLY))
        except OSError:
            continue
        raise JailError(f"{path} can still be opened")
    try:
        socket.socket().close()
    except OSError:
        pass
    else:
        raise JailError("sockets can still be made")
    try:
        child = os.fork()
    except OSError:
        return
    if child == 0:
        os._exit(0)
    raise JailError("processes can still be started")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    _check(_libc().prctl(option, value, 0, 0, 0), f"prctl {option}")


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise JailError(number, f"{what}: {os.strerror(number)}")
    return result
