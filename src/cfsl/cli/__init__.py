"""The command line: parse, call, print. The only place that prints."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from cfsl import __version__
from cfsl.cli import (
    bench,
    choosing,
    data,
    evaluation,
    reporting,
    results,
    sweep,
    tasks,
    training,
    verification,
)
from cfsl.cli.console import complain, drop_output, open_streams, say
from cfsl.errors import CfslError

_STOPPED = 130  # what a shell expects after Ctrl-C
# Click's UsageError, or the copy of it in newer versions of typer.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="The benchmark for continual few-shot learning.",
    epilog="Examples, which need no download:\n\n"
    "cfsl tasks show --type D --nss 4 --cci 2 --out task.png\n\n"
    "cfsl tasks export --type B --nss 3 --out b3.json.gz\n\n"
    "cfsl data list",
)
app.add_typer(data.app, name="data")
app.add_typer(tasks.app, name="tasks")
app.command("learners", epilog="Example: cfsl learners")(evaluation.learners)
app.command(
    "train",
    epilog="Example: cfsl train protonet --data omniglot --type B --nss 3 --set metric=cosine",
)(training.train)
app.command(
    "eval",
    epilog="Example: cfsl eval protonet --data omniglot --type B --nss 3 "
    "--checkpoint runs/protonet-omniglot-short",
)(evaluation.evaluate)
app.command(
    "choose",
    context_settings={"default_map": {"split": choosing.SPLIT}},
    epilog="Example: cfsl choose ewc_init --try strength=0,10,100,1000 --type D --nss 4 --cci 2 "
    "--tasks 100",
)(choosing.choose)
app.command(
    "sweep",
    context_settings={"default_map": {"split": choosing.SPLIT}},
    epilog="Example: cfsl sweep pretrain_tune_replay --data omniglot --type D --vary b=1,2,4 "
    "--vary p=5,10,20 --method univariate",
)(sweep.sweep)
app.command(
    "bench",
    epilog="Example: cfsl bench table1 --data omniglot --learners protonet,pretrain_tune --plan",
)(bench.bench)
app.command("verify", epilog="Example: cfsl verify results --strict")(verification.verify)
app.command(
    "compare", epilog="Example: cfsl compare cards/protonet-B3.json cards/multiproto-B3.json"
)(verification.compare)
app.add_typer(results.app, name="results")
app.command("report", epilog="Example: cfsl report bench results --out report.html")(
    reporting.report
)
app.command(
    "table",
    epilog="Example: cfsl table table1 bench --data omniglot --format latex --out table1.tex",
)(reporting.table)
app.command(
    "figure", epilog="Example: cfsl figure figure3 bench --data omniglot --out figure3.pdf"
)(reporting.figure)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"cfsl {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """The benchmark for continual few-shot learning."""


def main() -> None:
    """Run the command; an error that the user can mend is one line and exit code 2."""
    open_streams()
    code = _exit_code_of(lambda: app(standalone_mode=False))
    sys.exit(max(code, _exit_code_of(sys.stdout.flush)))


def _exit_code_of(action: Any) -> int:
    """Call a function, print a line about any error, and return the exit code."""
    try:
        code = int(action() or 0)
        if code == _STOPPED:
            complain("stopped")
        return code

    except (KeyboardInterrupt, typer.Abort):
        complain("stopped")
        return _STOPPED
    except BrokenPipeError:
        drop_output()
        return 1

    # Errors that the user can mend.
    except CfslError as error:
        complain(str(error))
    except _UsageError as error:
        complain(_usage_message(error))
    except OSError as error:
        complain(f"{error.filename or 'output'}: {error.strerror or error}")
        if action == sys.stdout.flush:
            drop_output()

    return 2


def _usage_message(error: Any) -> str:
    """Say what is wrong with the options, and where they are explained."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return "give a command"

    message = str(error.format_message())
    end = "" if message.endswith((".", "?")) else "."
    return f"{message}{end} See '{error.ctx.command_path if error.ctx else 'cfsl'} --help'."
