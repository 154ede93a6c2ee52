"""A worker process: it makes the learner, answers one call, and ends (see `isolate.py`)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import traceback
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from cfsl.harness.isolation.frames import read, receive, send
from cfsl.harness.isolation.worker_payload import Kit, laid_out
from cfsl.harness.law import watch_process
from cfsl.harness.run import StrictRun
from cfsl.harness.state import PackedState, StateCodec
from cfsl.learners.base import Support, TaskInfo

_in_worker = False


def is_worker() -> bool:
    """Tell whether this process is a worker."""
    return _in_worker


def work(descriptor: int, kit: Kit) -> NoReturn:
    """Be a worker: answer once, and end."""
    global _in_worker
    try:
        _in_worker = True
        os.setsid()  # so that whatever it starts can be ended with it
        connection = _alone_with(descriptor)
        try:
            head, tree = {}, _answer(connection, kit)
        except BaseException as error:
            story = "".join(traceback.format_exception(error))
            head, tree = {"problem": [type(error).__name__, str(error), story]}, None
        send(connection, head, tree)
        os._exit(0)
    finally:
        os._exit(1)


def _alone_with(descriptor: int) -> socket.socket:
    """Close everything but one connection: a position in a shared file is a channel, too."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    for other in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 - numbers, not paths
        if other > 2 and other != descriptor:
            with contextlib.suppress(OSError):  # the one that listed them
                os.close(other)
    return socket.socket(fileno=descriptor)


def _answer(connection: socket.socket, kit: Kit) -> Any:
    """Make the learner, then read the call: when its module is imported there is nothing to see."""
    learner = kit.rebuilt()
    run = StrictRun(learner, kit.meta, embedded=kit.head["embedded"], thorough_tasks=0)
    watch_process(type(learner).__name__)

    header, body = receive(connection)
    head = json.loads(header)
    info = TaskInfo(**head["info"] | {"image_shape": tuple(head["info"]["image_shape"])})
    tree = read(head["tree"], io.BytesIO(body))
    plain = StateCodec({}, info)
    given = laid_out(plain.unpack(PackedState(tree["given"], 0, 0)), head["strides"])

    with torch.set_grad_enabled(head["grad"]):
        answer = _called(
            run,
            head["call"],
            StateCodec(kit.meta, info),
            info,
            PackedState(tree["state"], 0, 0),
            given,
        )

    run.require_unchanged_weights()
    return answer.tree if isinstance(answer, PackedState) else plain.pack(answer).tree


def _called(
    run: StrictRun,
    call: str,
    codec: StateCodec,
    info: TaskInfo,
    packed: PackedState,
    given: Mapping[str, Tensor],
) -> PackedState | Tensor:
    """Do one call under the law."""
    if call == "begin":
        return run.begin(codec, info)
    if call == "observe":
        return run.observe(codec, packed, Support(given["images"], given["labels"]))
    if call == "predict":
        return run.predict(codec, packed, info, given["images"])
    return run.embed(given["images"])
