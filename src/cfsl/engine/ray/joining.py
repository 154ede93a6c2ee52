"""How a bench joins a Ray cluster: quietly, and with one clear line if it cannot."""

from __future__ import annotations

import importlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cfsl.errors import CfslError

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # else the death of a worker is printed, among the JSON of a bench too
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_REACH = 5.0
"""Seconds that the head of a cluster has to answer; Ray itself tries for minutes, and says so at length."""


def joined_cluster(address: str | None, count: int | None) -> Any:
    """Return Ray's module, joined to a cluster, or to a new one of `count` processors on this machine."""
    ray = _imported()
    where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
    if address is not None:
        _require_reachable(address)
    processors = {} if address else {"num_cpus": count, "include_dashboard": False}
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        with _own_stop_signal():
            # 'local' always starts a new cluster; None would join one that is named in the environment
            ray.init(
                address or "local", runtime_env={"env_vars": _ONE_THREAD}, **quiet, **processors
            )
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise CfslError(
            f"{where} cannot be {'joined' if address else 'started'}: {reason}"
        ) from error
    return ray


def _imported() -> Any:
    for name, value in _QUIET.items():  # which Ray reads when it is imported
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise CfslError("the engine 'ray' needs Ray: pip install cfsl[ray]") from error


def _require_reachable(address: str) -> None:
    """Refuse an address where nobody listens; 'auto' is looked up by Ray."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "//" in host:
        raise CfslError(
            f"'{address}' is no address of a Ray cluster; write it as host:port, or 'auto'"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH).close()
    except (OSError, OverflowError) as error:
        raise CfslError(
            f"the Ray cluster at {address} cannot be reached: {error}; start it with 'ray start --head'"
        ) from error


@contextmanager
def _own_stop_signal() -> Iterator[None]:
    """Keep what this process does when it is asked to end: Ray puts a handler of its own in its place."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def started_here(ray: Any, actor: type) -> Any:
    """Start an actor that takes no processor, on this machine; if it dies, it is started anew."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(actor).remote()
