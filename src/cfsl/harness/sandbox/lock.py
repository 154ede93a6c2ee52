"""The lock of a child: after it, the process has its memory, one pipe in, one pipe out, no more.

A filter of system calls (seccomp, made by libseccomp) allows a dozen of them. None takes a path,
an address or the number of a process. So there is no file, no socket, no process, no thread, no
signal and no shared memory, whatever code runs: Python, native, or machine code made on the spot.

A process could still tell another something by how long it takes. Therefore a child has no clock:
the system calls for it are refused, the page that the kernel shares with all processes for the time
is replaced by zeros, and the processor's counter is switched off.

It needs Linux on x86-64 and libseccomp. There is no weaker form for other systems.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import platform
import resource
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from cfsl.errors import CfslError

READ_FROM, WRITE_TO = 10, 11
"""The descriptors of the two pipes in a child."""

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_TSC, _PR_SET_NO_NEW_PRIVS = 1, 22, 26, 38
_PR_GET_SECCOMP = 21
_SECCOMP_MODE_FILTER, _PR_TSC_SIGSEGV = 2, 2
_SYS_CLOSE_RANGE = 436
_LAST_DESCRIPTOR = 2**32 - 1

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_MASKED_EQUAL = 7
_WHOLE_INT = 2**32 - 1

_MAP_SHARING, _MAP_PRIVATE = 3, 2
_FUTEX_COMMAND, _FUTEX_WAKE = 127, 1
_MADV_DONTNEED = 4
_READ_ONLY, _READ_WRITE_EXECUTE = 1, 7
_PRIVATE_ANONYMOUS, _PRIVATE_ANONYMOUS_HERE = 0x22, 0x32


@dataclass(frozen=True)
class Limits:
    """What one call may take."""

    seconds: float = 600.0
    """Of wall time, and of processor time."""
    memory: int = 4 * 2**30
    """In bytes, beside what the fork server has in memory."""


@dataclass(frozen=True)
class _Argument:
    """A condition on an argument of a system call: some of its bits have this value."""

    position: int
    bits: int
    value: int


_ALLOWED: tuple[tuple[str, _Argument | None], ...] = (
    ("read", _Argument(0, _WHOLE_INT, READ_FROM)),
    ("write", _Argument(0, _WHOLE_INT, WRITE_TO)),
    ("exit_group", None),
    # Memory of its own: private, never of a file (see also the second condition below).
    ("mmap", _Argument(3, _MAP_SHARING, _MAP_PRIVATE)),
    ("munmap", None),
    ("mremap", None),
    ("mprotect", None),
    ("brk", None),
    ("madvise", _Argument(2, _WHOLE_INT, _MADV_DONTNEED)),
    # Waking is what locks do when they are released; with one thread nobody waits.
    ("futex", _Argument(1, _FUTEX_COMMAND, _FUTEX_WAKE)),
    ("rt_sigprocmask", None),
    ("rt_sigreturn", None),
    ("getrandom", None),
)
_NO_FILE = _Argument(4, _WHOLE_INT, _WHOLE_INT)
"""The descriptor that is given to mmap is -1."""


def require_support() -> None:
    """Refuse a system that cannot lock a process."""
    missing = _what_is_missing()
    if missing is not None:
        raise CfslError(
            f"the sandbox cannot be used here: {missing}. "
            f"Evaluate with --isolate none; the card then says so"
        )


def _what_is_missing() -> str | None:
    if not sys.platform.startswith("linux"):
        return f"it needs Linux, and this is {platform.system()}"
    if platform.machine() != "x86_64":
        return f"it needs a processor of the kind x86_64, and this is {platform.machine()}"
    if _libc().prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return "this kernel has no seccomp"
    try:
        _libseccomp()
    except OSError:
        return "there is no libseccomp.so.2; your system has it as the package libseccomp2"
    return None


class _FilterProgram(ctypes.Structure):
    """The `struct sock_fprog` of the kernel."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


class _ArgumentCondition(ctypes.Structure):
    """The `struct scmp_arg_cmp` of libseccomp."""

    _fields_ = (
        ("position", ctypes.c_uint),
        ("comparison", ctypes.c_int),
        ("bits", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


class Lock:
    """Prepared in the fork server, and closed in every child."""

    def __init__(self, limits: Limits) -> None:
        """Make the filter, and find out where the shared page of the clocks is."""
        self._libc = _libc()
        self._limits = _system_limits(limits)
        self._filter = _filter()
        self._instructions = ctypes.create_string_buffer(self._filter, len(self._filter))
        self._program = _FilterProgram(len(self._filter) // 8, ctypes.addressof(self._instructions))
        self._clock_pages = _clock_pages()
        self._answers_zero = _placed(self._libc, _ANSWERS_ZERO)

    def close(self, read_from: int, write_to: int) -> None:
        """Lock this process for good; what it may use become `READ_FROM` and `WRITE_TO`."""
        self._keep_two_descriptors(read_from, write_to)
        self._succeed(self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        for kind, most in self._limits.items():
            resource.setrlimit(kind, (most, most))
        self._take_clocks_away()

        self._succeed(self._libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        program = ctypes.byref(self._program)
        self._succeed(
            self._libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0),
        )

    def _keep_two_descriptors(self, read_from: int, write_to: int) -> None:
        """Close all others: a position in a shared file is a channel, too."""
        os.dup2(read_from, READ_FROM)
        os.dup2(write_to, WRITE_TO)
        for first, last in ((0, READ_FROM - 1), (WRITE_TO + 1, _LAST_DESCRIPTOR)):
            self._succeed(
                self._libc.syscall(
                    _SYS_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), ctypes.c_uint(0)
                )
            )
        sys.stdin = sys.stdout = sys.stderr = io.StringIO()

    def _take_clocks_away(self) -> None:
        for start, size in self._clock_pages:
            page = self._libc.mmap(start, size, _READ_ONLY, _PRIVATE_ANONYMOUS_HERE, -1, 0)
            self._succeed(0 if page == start else -1)

        # oneDNN reads the counter at every convolution, and would be ended without an answer.
        self._libc.signal(signal.SIGSEGV, self._answers_zero)
        self._succeed(self._libc.prctl(_PR_SET_TSC, _PR_TSC_SIGSEGV, 0, 0, 0))

    def _succeed(self, result: int) -> None:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"a process cannot be locked ({os.strerror(number)})")


def _system_limits(limits: Limits) -> dict[int, int]:
    """Return the limits that the system enforces: a signal cannot be caught, nor a limit raised."""
    return {
        resource.RLIMIT_AS: _memory_in_use() + limits.memory,
        resource.RLIMIT_CPU: int(limits.seconds) + 1,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 0,
    }


def _memory_in_use() -> int:
    """Return the size of the address space of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _clock_pages() -> list[tuple[int, int]]:
    """Return start and size of the memory in which the kernel tells every process the time."""
    pages = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "[vvar" in line:
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            pages.append((start, end - start))
    return pages


_ANSWERS_ZERO = bytes.fromhex(
    "488b82a8000000"  # mov  rax, [rdx+0xa8]     the instruction that was not allowed
    "0fb708"  # movzx ecx, word [rax]
    "6681f90f31"  # cmp  cx, 0x310f          is it rdtsc?
    "7519"  # jne  +25
    "488382a800000002"  # add  qword [rdx+0xa8], 2  go on after it
    "4883a28800000000"  # and  qword [rdx+0x88], 0  with zero in rdx
    "4883a29000000000"  # and  qword [rdx+0x90], 0  and in rax
    "c3"  # ret
    "31c0"  # xor  eax, eax
    "8b00"  # mov  eax, [rax]             any other fault ends the process as usual
)
"""A handler of SIGSEGV that lets the instruction `rdtsc`, when it is forbidden, give zero.

Nothing rests on it: code that removes the handler is ended when it reads the counter.
"""


def _placed(libc: ctypes.CDLL, code: bytes) -> int:
    """Put machine code into memory, and return its address."""
    address: int | None = libc.mmap(None, len(code), _READ_WRITE_EXECUTE, _PRIVATE_ANONYMOUS, -1, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        raise CfslError("the sandbox cannot be used here: no memory for machine code")
    ctypes.memmove(address, code, len(code))
    return address


def _filter() -> bytes:
    """Return the filter as a program for the kernel."""
    library = _libseccomp()
    context = library.seccomp_init(_REFUSE)

    for name, condition in _ALLOWED:
        conditions = [condition] if condition is not None else []
        conditions += [_NO_FILE] if name == "mmap" else []
        _allow(library, context, name, conditions)

    with os.fdopen(os.memfd_create("filter"), "r+b") as file:
        if library.seccomp_export_bpf(context, file.fileno()) < 0:
            raise CfslError("the sandbox cannot be used here: libseccomp made no filter")
        file.seek(0)
        program = file.read()
    library.seccomp_release(context)
    return program


def _allow(library: ctypes.CDLL, context: int, name: str, conditions: list[_Argument]) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    compared = [
        _ArgumentCondition(one.position, _MASKED_EQUAL, one.bits, one.value) for one in conditions
    ]
    array = (_ArgumentCondition * len(compared))(*compared)
    if library.seccomp_rule_add_array(context, _ALLOW, number, len(compared), array) < 0:
        raise CfslError(f"the sandbox cannot be used here: libseccomp has no rule for {name}")


def _libseccomp() -> ctypes.CDLL:
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    ]
    return library


def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    return library
