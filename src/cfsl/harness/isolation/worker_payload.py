"""What a worker process finds in its memory, and how it gets there with its layout."""

from __future__ import annotations

import io
import json
import multiprocessing.spawn
import pickle
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cfsl.errors import LearnerError
from cfsl.harness.isolation.frames import read, receive
from cfsl.harness.state import PackedState, PackedTensor, StateCodec, flatten
from cfsl.learners.base import Learner, Meta, TaskInfo

NO_TASK = TaskInfo(
    image_shape=(0, 0, 0), labels=0, nss=0, n_way=0, k_shot=0, cci=1, overwrite=False, seed=0
)


@dataclass(frozen=True)
class Kit:
    """What a worker finds in its memory."""

    learner: bytes
    """A pickle that we made: only a worker loads it, for that may run code of the learner's."""
    meta: Meta
    head: Mapping[str, Any]

    @classmethod
    def received(cls, control: socket.socket) -> Kit:
        """Read what `hand_over` has made."""
        header, body = receive(control)
        head = json.loads(header)
        tree = read(head["tree"], io.BytesIO(body))
        meta = StateCodec({}, NO_TASK).unpack(PackedState(tree["meta"], 0, 0))
        return cls(bytes(tree["learner"].content), laid_out(meta, head["strides"]), head)

    def rebuilt(self) -> Learner:
        """Make the learner; its module is imported if it is not one of ours."""
        sys.path[:] = self.head["path"]
        try:
            multiprocessing.spawn.prepare(self.head["main"])
            learner: Learner = pickle.loads(self.learner)
        except Exception as error:
            raise LearnerError(
                f"{self.head['name']} cannot be made again in a worker process: "
                f"{in_one_line(error)}"
            ) from error
        return learner


def hand_over(learner: Learner, meta: Meta, *, embedded: bool) -> tuple[dict[str, Any], Any]:
    """Return the message that hands a learner to a template."""
    name = type(learner).__name__

    elsewhere = [path for path, tensor in flatten(meta).items() if tensor.device.type != "cpu"]
    if elsewhere:
        raise LearnerError(
            f"isolated runs are on the CPU; the learned weights '{elsewhere[0]}' are not"
        )

    try:
        pickled = pickle.dumps(learner)
    except Exception as error:
        raise LearnerError(
            f"{name} cannot be sent to a worker process: {in_one_line(error)}. "
            f"Define its class at the top of a module, and keep plain values in it"
        ) from None

    main = multiprocessing.spawn.get_preparation_data(name) if b"main__" in pickled else {}
    head = {
        "name": name,
        "path": sys.path,
        "main": {key: value for key, value in main.items() if key.startswith("init_main")},
        "embedded": embedded,
        "strides": strides_of(meta),
    }
    weights = StateCodec({}, NO_TASK).pack(_as_dicts(meta)).tree
    return head, {
        "meta": weights,
        "learner": PackedTensor(bytearray(pickled), torch.uint8, (len(pickled),)),
    }


def _as_dicts(tree: Any) -> Any:
    return (
        tree if isinstance(tree, Tensor) else {key: _as_dicts(value) for key, value in tree.items()}
    )


def strides_of(tree: Any) -> dict[str, list[int]]:
    """Return how tensors lie in memory, for that can decide the last bit of a sum."""
    return {path: list(torch.empty_like(tensor).stride()) for path, tensor in flatten(tree).items()}


def laid_out(tree: Any, strides: Mapping[str, list[int]], path: str = "") -> Any:
    """Copy tensors to private memory, laid out as they were."""
    if isinstance(tree, Tensor):
        return torch.empty_strided(tree.shape, strides[path], dtype=tree.dtype).copy_(tree)
    return {
        key: laid_out(value, strides, f"{path}/{key}" if path else str(key))
        for key, value in tree.items()
    }


def in_one_line(error: Exception) -> str:
    """Return the kind of an error and what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split())
