"""A process that is killed while it writes a file."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

_WRITE_UNTIL_KILLED = """
import os, signal, sys
from pathlib import Path

from cfsl.files import written_whole

with written_whole(Path(sys.argv[1])) as part:
    part.write_text("half of it")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def kill_while_writing(path: Path) -> Path:
    """Kill a process that writes to a path, and return the part file that it leaves."""
    earlier = set(path.parent.glob(".*.part"))
    command = [sys.executable, "-c", _WRITE_UNTIL_KILLED, str(path)]
    assert subprocess.run(command).returncode == -signal.SIGKILL

    (part,) = set(path.parent.glob(".*.part")) - earlier
    return part
