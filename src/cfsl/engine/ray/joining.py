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
    # Else Ray prints the death of a worker, among the JSON of a bench too.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
_REACH = 5.0
"""Seconds that the head of a cluster has to answer; Ray itself would try for minutes."""


def joined_cluster(address: str | None, count: int | None) -> Any:
    """Join a cluster, or a new one of `count` processors on this machine; return Ray's module."""
    ray = _imported()
    where = f"the Ray cluster at {address}" if address else "a Ray cluster on this machine"
    if address is not None:
        _require_reachable(address)

    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        options |= {"num_cpus": count, "include_dashboard": False}

    try:
        with _own_stop_signal():
            # 'local' always starts a new cluster; None would join one of the environment.
            ray.init(address or "local", runtime_env={"env_vars": _ONE_THREAD}, **options)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        reason = str(error).strip().partition("\n")[0]
        done = "joined" if address else "started"
        raise CfslError(f"{where} cannot be {done}: {reason}") from error

    return ray


def _imported() -> Any:
    for name, value in _QUIET.items():  # which Ray reads when it is imported
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise CfslError("the engine 'ray' needs Ray: pip install cfsl[ray]") from error


def _require_reachable(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself looks up 'auto'."""
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
            f"the Ray cluster at {address} cannot be reached: {error}; "
            f"start it with 'ray start --head'"
        ) from error


@contextmanager
def _own_stop_signal() -> Iterator[None]:
    """Keep this process's own handler of SIGTERM, which Ray would replace by its own."""
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
