"""The command line: parse, call, print. The only place that prints."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from cfsl import __version__
from cfsl.cli import data, tasks
from cfsl.cli.console import err
from cfsl.errors import CfslError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The benchmark for continual few-shot learning.",
    epilog="Example: cfsl tasks show --type D --nss 4 --cci 2 --out task.png",
)
app.add_typer(data.app, name="data")
app.add_typer(tasks.app, name="tasks")


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")] = False,
) -> None:
    """The benchmark for continual few-shot learning."""
    if version:
        from cfsl.cli.console import say

        say(f"cfsl {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command; what the user can mend is one line and exit code 2."""
    try:
        app()
    except CfslError as error:
        err.print(f"cfsl: {error}", markup=False)
        sys.exit(2)
    except KeyboardInterrupt:
        err.print("cfsl: stopped")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
