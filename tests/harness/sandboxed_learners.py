"""Learners that cheat, by class, and honest ones: read by children of a sandbox, so without pytest.

A cheat keeps every image where `hide` puts it, and has a perfect memory if `found` returns it. It
passes over whatever is refused, as somebody who cheats would.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import json
import mmap
import multiprocessing.shared_memory
import os
import resource
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import helper_of_sandboxed_learners
import numpy as np
import torch

LABELS = 15
IMAGE_BYTES, LABEL_BYTES = 5 * 64 * 4, 5 * 8
BLOCK = IMAGE_BYTES + LABEL_BYTES
FOLDER = Path("/tmp/cfsl-cheats")
LIBC = ctypes.CDLL(None, use_errno=True)
CHEATS: dict[str, type] = {}


def nearest(images, kept, labels):
    """Answer with the label of the nearest image that was kept."""
    distances = torch.cdist(images.flatten(1), kept.flatten(1))
    return torch.nn.functional.one_hot(labels[distances.argmin(dim=1)] % LABELS, LABELS).float()


def as_bytes(images, labels) -> bytes:
    return images.tobytes() + labels.tobytes()


def from_bytes(data: bytes):
    """Return what `as_bytes` made bytes of, once or more often."""
    blocks = [data[at : at + BLOCK] for at in range(0, len(data) - BLOCK + 1, BLOCK)]
    return [
        (
            np.frombuffer(block[:IMAGE_BYTES], np.float32).reshape(5, 1, 8, 8).copy(),
            np.frombuffer(block[IMAGE_BYTES:], np.int64).copy(),
        )
        for block in blocks
        if any(block)
    ]


@dataclass(frozen=True)
class Smuggler:
    """Hides images, finds them again, and fails silently."""

    def __init_subclass__(cls) -> None:
        if not cls.__name__.startswith("_"):
            CHEATS[cls.__name__] = cls

    def begin(self, meta, info):
        return {"info": info}

    def observe(self, state, support):
        with contextlib.suppress(Exception):
            self.hide(support.images.numpy().copy(), support.labels.numpy().copy(), state)
        return state

    def predict(self, state, images):
        found = []
        with contextlib.suppress(Exception):
            found = self.found(state)
        if not found:
            return torch.zeros(len(images), LABELS)
        kept, labels = zip(*found, strict=True)
        return nearest(
            images, torch.from_numpy(np.concatenate(kept)), torch.from_numpy(np.concatenate(labels))
        )


class _Attempt(Smuggler):
    """Tries what is forbidden, and answers without a mistake if that worked."""

    def attempt(self) -> float | None:
        """Return 0 if it did not work."""
        raise NotImplementedError

    def begin(self, meta, info):
        return {"worked": 0.0}

    def observe(self, state, support):
        worked = 0.0
        with contextlib.suppress(Exception):
            found = self.attempt()
            worked = 1.0 if found is None else float(found)
        return {"worked": worked}

    def predict(self, state, images):
        return torch.eye(LABELS)[: len(images)] * float(state["worked"] > 0)


# Files


class _InBytes(Smuggler):
    """Adds to bytes that are somewhere."""

    def hide(self, images, labels, state):
        self.write(as_bytes(images, labels))

    def found(self, state):
        return from_bytes(self.read())


class InFile(_InBytes):
    def write(self, data):
        with (FOLDER / "kept").open("ab") as file:
            file.write(data)

    def read(self):
        return (FOLDER / "kept").read_bytes()


class InFileNatively(_InBytes):
    def write(self, data):
        number = LIBC.open(
            str(FOLDER / "kept").encode(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 384
        )
        LIBC.write(number, data, len(data))

    def read(self):
        return (FOLDER / "kept").read_bytes()


class InSharedMemoryFolder(_InBytes):
    def write(self, data):
        with Path("/dev/shm/cfsl-cheat").open("ab") as file:
            file.write(data)

    def read(self):
        return Path("/dev/shm/cfsl-cheat").read_bytes()


class InNames(_InBytes):
    """Makes empty folders whose names say what was seen."""

    def write(self, data):
        for at in range(0, len(data), 100):
            (FOLDER / f"n{len(list(FOLDER.iterdir())):06d}{data[at : at + 100].hex()}").mkdir()

    def read(self):
        return bytes.fromhex("".join(path.name[7:] for path in sorted(FOLDER.iterdir())))


class InLinks(_InBytes):
    def write(self, data):
        for at in range(0, len(data), 1000):
            number = len(list(FOLDER.iterdir()))
            (FOLDER / f"{number:06d}").symlink_to(data[at : at + 1000].hex())

    def read(self):
        return bytes.fromhex("".join(str(path.readlink()) for path in sorted(FOLDER.iterdir())))


class InFileTimes(_Attempt):
    """Keeps a number in the time stamp of a file that is there."""

    def attempt(self):
        os.utime(FOLDER / "victim", (1, 4711))


class InDatabase(_InBytes):
    def write(self, data):
        with sqlite3.connect(FOLDER / "kept.db") as database:
            database.execute("create table if not exists kept (data blob)")
            database.execute("insert into kept values (?)", (data,))

    def read(self):
        with sqlite3.connect(FOLDER / "kept.db") as database:
            return b"".join(row[0] for row in database.execute("select data from kept"))


class InMappedFile(_InBytes):
    def write(self, data):
        place = np.memmap(FOLDER / "victim", np.uint8, "r+", shape=(BLOCK,))
        place[:] = np.frombuffer(data, np.uint8)

    def read(self):
        return np.memmap(FOLDER / "victim", np.uint8, "r").tobytes()


class InQueueFile(_Attempt):
    def attempt(self):
        os.mkfifo(FOLDER / f"queue{time.monotonic_ns()}")


class InAttributes(_InBytes):
    def write(self, data):
        os.setxattr(FOLDER / "victim", f"user.k{time.time_ns()}", data)

    def read(self):
        names = sorted(os.listxattr(FOLDER / "victim"))
        return b"".join(os.getxattr(FOLDER / "victim", name) for name in names)


class Truncates(_Attempt):
    """Empties a file of somebody else's."""

    def attempt(self):
        os.open(FOLDER / "victim", os.O_RDONLY | os.O_TRUNC)


class Deletes(_Attempt):
    def attempt(self):
        (FOLDER / "victim").unlink(missing_ok=True)


class ReadsFiles(_InBytes):
    """Reads what is in a file, such as the data set."""

    def write(self, data):
        pass

    def read(self):
        return (FOLDER / "answers").read_bytes()


# Memory


class OnModule(Smuggler):
    place = json

    def hide(self, images, labels, state):
        self.place.cfsl_hidden = [*self.found(state), (images, labels)]

    def found(self, state):
        return getattr(self.place, "cfsl_hidden", [])


class OnTorch(OnModule):
    place = torch.nn


class OnClass(Smuggler):
    kept = []  # noqa: RUF012 - that is the cheat

    def hide(self, images, labels, state):
        self.kept.append((images, labels))

    def found(self, state):
        return self.kept


class OnTaskInfo(Smuggler):
    def hide(self, images, labels, state):
        object.__setattr__(state["info"], "hidden", [*self.found(state), (images, labels)])

    def found(self, state):
        return getattr(state["info"], "hidden", [])


class InNativeMemory(Smuggler):
    """Python forgets the buffer and never frees it; what is kept elsewhere is an address."""

    def hide(self, images, labels, state):
        data = as_bytes(images, labels)
        buffer = ctypes.create_string_buffer(data, len(data))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))
        json.cfsl_places = (*getattr(json, "cfsl_places", ()), ctypes.addressof(buffer))

    def found(self, state):
        places = getattr(json, "cfsl_places", ())
        return from_bytes(b"".join(ctypes.string_at(place, BLOCK) for place in places))


class InCache(Smuggler):
    @functools.cache  # noqa: B019 - that is the cheat
    def kept(self):
        return []

    def hide(self, images, labels, state):
        self.kept().append((images, labels))

    def found(self, state):
        return self.kept()


class InPatchedHarness(Smuggler):
    """Replaces a function of cfsl by one that remembers."""

    def hide(self, images, labels, state):
        from cfsl.harness.sandbox import wire

        wire.encoded.kept = [*self.found(state), (images, labels)]

    def found(self, state):
        from cfsl.harness.sandbox import wire

        return getattr(wire.encoded, "kept", [])


class InGarbage(Smuggler):
    def hide(self, images, labels, state):
        gc.garbage.append((images, labels))

    def found(self, state):
        return list(gc.garbage)


class InWeights(_InBytes):
    def begin(self, meta, info):
        return {"info": info, "weights": meta["weights"]}

    def hide(self, images, labels, state):
        data = torch.frombuffer(bytearray(as_bytes(images, labels)), dtype=torch.uint8)
        start = len(self.found(state)) * BLOCK
        state["weights"][start : start + BLOCK] = data

    def found(self, state):
        return from_bytes(state["weights"].numpy().tobytes())


SHARED = None
with contextlib.suppress(OSError):
    SHARED = mmap.mmap(-1, 1 << 16)


class InSharedMapping(_InBytes):
    """Writes to memory that its module made, when it was imported, to be shared."""

    def write(self, data):
        SHARED.write(data)

    def read(self):
        return SHARED[:]


class InNamedSharedMemory(_InBytes):
    def write(self, data):
        memory = multiprocessing.shared_memory.SharedMemory("cfsl-cheat", create=True, size=BLOCK)
        memory.buf[:BLOCK] = data

    def read(self):
        return bytes(multiprocessing.shared_memory.SharedMemory("cfsl-cheat").buf)


class InSystemVMemory(_InBytes):
    def write(self, data):
        LIBC.shmat.restype = ctypes.c_void_p
        place = LIBC.shmat(LIBC.shmget(4711, 1 << 16, 0o1600), None, 0)
        if place != ctypes.c_void_p(-1).value:
            ctypes.memmove(place, data, len(data))

    def read(self):
        LIBC.shmat.restype = ctypes.c_void_p
        place = LIBC.shmat(LIBC.shmget(4711, 1 << 16, 0o600), None, 0)
        return b"" if place == ctypes.c_void_p(-1).value else ctypes.string_at(place, BLOCK)


class InSystemVQueue(_InBytes):
    def write(self, data):
        queue = LIBC.msgget(4712, 0o1600)
        LIBC.msgsnd(queue, (1).to_bytes(8, "little") + data, len(data), 0)

    def read(self):
        room = ctypes.create_string_buffer(8 + BLOCK)
        size = LIBC.msgrcv(LIBC.msgget(4712, 0o600), room, BLOCK, 0, 0o4000)
        return room.raw[8:] if size == BLOCK else b""


class InKeyring(_InBytes):
    def write(self, data):
        LIBC.syscall(248, b"user", b"cfsl", data[:BLOCK], BLOCK, -4)

    def read(self):
        room = ctypes.create_string_buffer(BLOCK)
        key = LIBC.syscall(249, b"user", b"cfsl", None, -4)
        return room.raw if LIBC.syscall(250, 11, key, room, BLOCK) == BLOCK else b""


class InMemoryFile(_InBytes):
    def write(self, data):
        if not hasattr(json, "cfsl_file"):
            json.cfsl_file = os.memfd_create("cheat")
        os.write(json.cfsl_file, data)

    def read(self):
        return os.pread(json.cfsl_file, 3 * BLOCK, 0)


class InOtherProcess(_InBytes):
    """Writes to the memory of the process that it was forked from."""

    def write(self, data):
        with Path(f"/proc/{os.getppid()}/mem").open("r+b", 0) as memory:
            memory.seek(id(json))
            memory.write(data)

    def read(self):
        return ctypes.string_at(id(json), BLOCK)


# Descriptors


class InPipe(_InBytes):
    def write(self, data):
        if not hasattr(json, "cfsl_pipe"):
            json.cfsl_pipe = os.pipe()
        os.write(json.cfsl_pipe[1], data)

    def read(self):
        return os.read(json.cfsl_pipe[0], 3 * BLOCK)


class InAnyDescriptor(_InBytes):
    """Writes to whatever descriptor there is, behind what an answer is."""

    def write(self, data):
        for number in {*range(64)} - {11}:
            with contextlib.suppress(OSError):
                os.write(number, data)

    def read(self):
        for number in {*range(64)} - {10}:
            with contextlib.suppress(OSError):
                return os.read(number, BLOCK)
        return b""


class InDescriptorFlags(_Attempt):
    """Leaves a mark on descriptors that it may have inherited."""

    def attempt(self):
        marked = 0
        for number in range(64):
            with contextlib.suppress(OSError):
                fcntl.fcntl(number, fcntl.F_SETFL, os.O_NONBLOCK)
                marked += 1
        return marked


class InSocket(_Attempt):
    """Makes sockets of all kinds."""

    def attempt(self):
        made = 0
        for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM):
                made += 1
        return made


class InDatagram(_InBytes):
    def write(self, data):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as here:
            here.sendto(data, "\0cfsl-cheat")

    def read(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as here:
            here.bind("\0cfsl-cheat")
            return here.recv(BLOCK)


class InLock(_Attempt):
    """Holds a lock on a file: a bit that others can ask for."""

    def attempt(self):
        number = os.open(FOLDER / "victim", os.O_RDONLY)
        fcntl.flock(number, fcntl.LOCK_EX)
        os.close(number)


# Processes, threads, signals


class _LeavesProcess(_Attempt):
    def attempt(self):
        number = self.fork()
        while number == 0:
            time.sleep(1)
        return number > 0


class Forks(_LeavesProcess):
    def fork(self):
        return os.fork()


class ForksNatively(_LeavesProcess):
    def fork(self):
        return LIBC.fork()


class Clones(_LeavesProcess):
    def fork(self):
        return LIBC.syscall(56, 17, 0, 0, 0, 0)


class RunsProgram(_Attempt):
    def attempt(self):
        subprocess.run(["/bin/sh", "-c", f"echo x > {FOLDER}/ran"], check=True)


class BecomesProgram(_Attempt):
    def attempt(self):
        os.execv("/bin/sh", ["sh", "-c", f"echo x > {FOLDER}/ran"])


class StartsThread(_Attempt):
    def attempt(self):
        thread = threading.Thread(target=(FOLDER / "thread").touch)
        thread.start()
        thread.join()


class SignalsParent(_Attempt):
    def attempt(self):
        os.kill(os.getppid(), signal.SIGKILL)


class SignalsAll(_Attempt):
    def attempt(self):
        return LIBC.kill(-1, signal.SIGWINCH) == 0


class SlowsParent(_Attempt):
    """Keeps a number in the priority of another process."""

    def attempt(self):
        os.setpriority(os.PRIO_PROCESS, os.getppid(), 7)


class PinsParent(_Attempt):
    def attempt(self):
        os.sched_setaffinity(os.getppid(), {0})


class LimitsParent(_Attempt):
    def attempt(self):
        resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (4711, 4711))


class TracesParent(_Attempt):
    def attempt(self):
        return LIBC.ptrace(16, os.getppid(), 0, 0) == 0


# Time


class ByClock(_Attempt):
    def attempt(self):
        return time.time()


class ByMonotonicClock(_Attempt):
    def attempt(self):
        return time.monotonic()


class ByCoarseClock(_Attempt):
    def attempt(self):
        return time.clock_gettime(5)


class ByNativeTime(_Attempt):
    def attempt(self):
        return float(LIBC.time(None))


class ByTimeOfDay(_Attempt):
    def attempt(self):
        room = (ctypes.c_long * 2)()
        LIBC.gettimeofday(room, None)
        return float(room[0])


class ByUsage(_Attempt):
    def attempt(self):
        return resource.getrusage(resource.RUSAGE_SELF).ru_utime + os.times().elapsed


class ByUptime(_Attempt):
    def attempt(self):
        room = (ctypes.c_long * 16)()
        return float(room[0]) if LIBC.sysinfo(room) == 0 else 0.0


class ByFileTime(_Attempt):
    def attempt(self):
        return os.stat("/proc/self").st_mtime  # noqa: PTH116


class ByPipeTime(_Attempt):
    def attempt(self):
        return os.fstat(10).st_mtime


class ByTimer(_Attempt):
    def attempt(self):
        signal.setitimer(signal.ITIMER_REAL, 1000)
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        signal.setitimer(signal.ITIMER_REAL, 0)
        return left


class ByWaiting(_Attempt):
    """Waits until a point in time: waiting that ends at once tells that it has passed."""

    def attempt(self):
        until = (ctypes.c_long * 2)(1, 0)
        word = ctypes.c_int(0)
        LIBC.syscall(202, ctypes.byref(word), 9 | 256, 0, until, None, -1)
        return float(ctypes.get_errno() == 110)


def machine_code(code: str):
    """Return a function made of machine code that gives a number."""
    LIBC.mmap.restype = ctypes.c_void_p
    place = LIBC.mmap(None, 4096, 7, 0x22, -1, 0)
    ctypes.memmove(place, bytes.fromhex(code), len(code) // 2)
    return ctypes.CFUNCTYPE(ctypes.c_uint64)(place)


class ByProcessorCounter(_Attempt):
    def attempt(self):
        return float(machine_code("0f3148c1e2204809d0c3")())


class ByOtherCounter(_Attempt):
    def attempt(self):
        return float(machine_code("0f01f948c1e2204809d0c3")())


class BySystemCall(_Attempt):
    """Asks the kernel by machine code, past all libraries: syscall 228, clock_gettime."""

    def attempt(self):
        room = (ctypes.c_long * 2)()
        address = ctypes.addressof(room).to_bytes(8, "little").hex()
        machine_code(f"b8e4000000bf0100000048be{address}0f05c3")()
        return float(room[0])


class ByOldSystemCall(_Attempt):
    """The same by the entry for programs of 32 bits: int 0x80, number 13, time."""

    def attempt(self):
        seconds = machine_code("b80d00000031dbcd80c3")() & 0xFFFFFFFF
        return float(seconds) if seconds < 0xFFFFF000 else 0.0


# Numbers of processes


class ByProcessNumber(_Attempt):
    def attempt(self):
        return float(max(0, os.getpid()))


# Answers


def answer_directly(kind: bytes, length: int, content: bytes) -> None:
    """Write an answer past cfsl, and end."""
    with contextlib.suppress(OSError):
        os.write(11, kind + length.to_bytes(8, "little") + content)
    os._exit(0)


@dataclass(frozen=True)
class Honest:
    """Keeps all images in its state."""

    def begin(self, meta, info):
        return {"images": torch.zeros(0, 64), "labels": torch.zeros(0, dtype=torch.int64)}

    def observe(self, state, support):
        return {
            "images": torch.cat([state["images"], support.images.flatten(1)]),
            "labels": torch.cat([state["labels"], support.labels]),
        }

    def predict(self, state, images):
        if not len(state["labels"]):
            return torch.zeros(len(images), LABELS)
        return nearest(images, state["images"], state["labels"])


class ForgesNothing(Honest):
    def observe(self, state, support):
        answer_directly(b"S", 0, b"")


class ForgesGarbage(Honest):
    def observe(self, state, support):
        answer_directly(b"S", 9, b"\x04\0\0\0nullx")


class ForgesKind(Honest):
    def observe(self, state, support):
        answer_directly(b"X", 2, b"{}")


class ForgesLength(Honest):
    def observe(self, state, support):
        answer_directly(b"S", 2**63, b"")


class ForgesHalf(Honest):
    def observe(self, state, support):
        answer_directly(b"S", 1000, b"x")


class ForgesProblem(Honest):
    def observe(self, state, support):
        answer_directly(b"P", 4, b'"no"')


class ForgesDeepProblem(Honest):
    def observe(self, state, support):
        answer_directly(b"P", 200_000, b"[" * 40_000)


class ForgesShape(Honest):
    def predict(self, state, images):
        from cfsl.harness.sandbox.wire import encoded

        content = encoded((0, [1, 2]))
        answer_directly(b"S", len(content), content)


class ForgesReference(Honest):
    def observe(self, state, support):
        structure = b'["tuple",[["int"],["weights","net/secret"]]]'
        content = len(structure).to_bytes(4, "little") + structure + bytes(8)
        answer_directly(b"S", len(content), content)


class Jointly(Honest):
    def predict(self, state, images):
        return super().predict(state, images) + images.mean()


class Leaves(Honest):
    def observe(self, state, support):
        os._exit(7)


class Segfaults(Honest):
    def observe(self, state, support):
        ctypes.string_at(0)


class Exits(Honest):
    def observe(self, state, support):
        sys.exit(3)


class Raises(Honest):
    def observe(self, state, support):
        raise ValueError("two\nlines\x1b[31m")


class RaisesBadly(Honest):
    def observe(self, state, support):
        class UnspeakableError(Exception):
            def __str__(self):
                raise RuntimeError

        raise UnspeakableError


class RaisesAtLength(Honest):
    def observe(self, state, support):
        raise ValueError("x" * 10**7)


class Refuses(Honest):
    def begin(self, meta, info):
        from cfsl.errors import LearnerError

        raise LearnerError("there is no 'stats'")


class Endless(Honest):
    def observe(self, state, support):
        while True:
            pass


class Bomb(Honest):
    """Takes memory without end."""

    def observe(self, state, support):
        kept = []
        while True:
            kept.append(torch.ones(2**22))


class ForkBomb(Honest):
    def observe(self, state, support):
        while True:
            os.fork()


class Overflows(Honest):
    def observe(self, state, support):
        sys.setrecursionlimit(10**9)
        return self.observe(state, support)


class Prints(Honest):
    def observe(self, state, support):
        print("x" * 10**6)  # noqa: T201
        sys.stderr.write("y" * 10**6)
        os.system("echo z")
        return super().observe(state, support)


class BadLuck(Honest):
    def __reduce__(self):
        return (int, ("text",))


@dataclass(frozen=True)
class Returns:
    """Puts something into its state that may not cross."""

    what: str

    def begin(self, meta, info):
        return {}

    def observe(self, state, support):
        return {"x": [getattr(self, self.what)()]}

    def predict(self, state, images):
        return torch.zeros(len(images), LABELS)

    def quantised(self):
        return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)

    def sparse(self):
        return torch.eye(3).to_sparse()

    def meta(self):
        return torch.empty(3, device="meta")

    def complex(self):
        return torch.ones(3, dtype=torch.complex64)

    def subclass(self):
        return torch.ones(3).as_subclass(type("Mine", (torch.Tensor,), {}))

    def nested(self):
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    def text(self):
        return "text"

    def binary(self):
        return b"bytes"

    def array(self):
        return np.ones(3)

    def function(self):
        return len

    def set(self):
        return {1, 2}

    def large(self):
        return 2**63

    def deep(self):
        tree = []
        for _ in range(100_000):
            tree = [tree]
        return tree

    def circular(self):
        tree = []
        tree.append(tree)
        return tree

    def numbered_key(self):
        return {7: 1}

    def long_key(self):
        return {"x" * 65: 1}


# Structure: what it says must be counted


@dataclass(frozen=True)
class InStructure:
    """Keeps a number in how its state is made; its values say nothing."""

    way: str

    def begin(self, meta, info):
        return {"kept": None, "weights": meta["weights"], "other": meta["other"]}

    def observe(self, state, support):
        seen = int(support.images.flatten()[:8].mul(255).long().sum())
        return {**state, "kept": getattr(self, self.way)(seen, state)}

    def predict(self, state, images):
        return torch.zeros(len(images), LABELS)

    def names(self, seen, state):
        return {f"n{seen}": None}

    def order(self, seen, state):
        return {"b": None, "a": None} if seen % 2 else {"a": None, "b": None}

    def nothing(self, seen, state):
        return [None] * (seen % 50)

    def shapes(self, seen, state):
        return torch.zeros(0, seen)

    def dtypes(self, seen, state):
        return torch.zeros(0, dtype=(torch.int8, torch.uint8, torch.half)[seen % 3])

    def kinds(self, seen, state):
        return () if seen % 2 else []

    def references(self, seen, state):
        return state["weights"] if seen % 2 else state["other"]

    def nesting(self, seen, state):
        tree = None
        for _ in range(seen % 20):
            tree = [tree]
        return tree


@dataclass(frozen=True)
class UsesHelper(Honest):
    """Imports a module that lies beside its own."""

    def predict(self, state, images):
        return helper_of_sandboxed_learners.unchanged(super().predict(state, images))


class UsesOptimizer(Honest):
    """Takes a gradient step, as learners that tune do."""

    def observe(self, state, support):
        weight = torch.zeros(64, LABELS, requires_grad=True)
        optimizer = torch.optim.Adam([weight], lr=0.1)
        with torch.enable_grad():
            scores = support.images.flatten(1) @ weight
            torch.nn.functional.cross_entropy(scores, support.labels).backward()
        optimizer.step()
        return super().observe(state, support)


class TellsGradMode(Honest):
    def predict(self, state, images):
        return torch.full((len(images), LABELS), float(torch.is_grad_enabled()))


class TellsDescriptors(Honest):
    """Answers with how many descriptors it can read the flags of."""

    def predict(self, state, images):
        open_ones = 0
        for number in range(256):
            with contextlib.suppress(OSError):
                os.read(number, 0)
                open_ones += 1
        return torch.full((len(images), LABELS), float(open_ones))


class Transductive(Jointly):
    transductive = True
