"""One page a command, from the command itself: what it does, its options, an example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from markup import LEFT, block, code, table

FOLDER = "commands"


def command_pages() -> dict[str, str]:
    """Return the pages by file name."""
    import typer.main

    from cfsl.cli import app

    tree = typer.main.get_command(app)
    pages = {f"{FOLDER}/{name}.md": _page(name, command) for name, command in tree.commands.items()}
    listed = [
        [f"[`cfsl {command_name}`]({name}.md)", _first_sentence(command)]
        for name, top in tree.commands.items()
        for command_name, command in walk(name, top)
    ]
    contents = "\n".join(tree.commands)
    pages[f"{FOLDER}/index.md"] = (
        "# Commands\n\n"
        "Written from the commands themselves: `cfsl COMMAND --help` says the same.\n\n"
        f"{table({'command': LEFT, 'what it does': LEFT}, listed)}\n"
        f"```{{toctree}}\n:hidden:\n\n{contents}\n```\n\n"
        "Exit codes: 0, done; 1, something that was asked about is not so (a card is refused, a "
        "cell failed); 2, the command cannot be done, with one line that says why; 130, stopped by "
        "Ctrl-C. With `--json` there is nothing but JSON on standard output.\n"
    )
    return pages


def walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield the commands that can be run below one of the first level, by their full names."""
    below = getattr(command, "commands", None)
    if below is None:
        yield name, command
        return
    for sub_name, sub in below.items():
        yield from walk(f"{name} {sub_name}", sub)


def _page(name: str, command: Any) -> str:
    is_group = hasattr(command, "commands")
    head = f"# `cfsl {name}`\n\n{command.help or ''}\n\n" if is_group else ""
    return head + "\n".join(
        _section(path, sub, "##" if is_group else "#") for path, sub in walk(name, command)
    )


def _section(path: str, command: Any, mark: str) -> str:
    """Return what there is to know of one command."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [
        param for param in command.params if param.param_type_name == "option" and not param.hidden
    ]
    usage = " ".join(
        ["cfsl", path, *(_placeholder(argument) for argument in arguments), "[OPTIONS]"]
    )
    parts = [f"{mark} `cfsl {path}`\n", f"{command.help}\n", block(usage, "text")]
    if arguments:
        parts.append(
            table(
                {"argument": LEFT, "what it is": LEFT},
                [_argument(argument) for argument in arguments],
            )
        )
    own = command.context_settings.get("default_map", {})
    for panel in dict.fromkeys(option.rich_help_panel for option in options):
        rows = [_option(option, own) for option in options if option.rich_help_panel == panel]
        parts.append(table({panel or "option": LEFT, "default": LEFT, "what it does": LEFT}, rows))
    if command.epilog:
        examples = [
            line.strip()
            for line in command.epilog.split("\n")
            if line.strip().startswith(("Example", "cfsl"))
        ]
        shown = "\n".join(
            line.split(":", 1)[1].strip() if line.startswith("Example") else line
            for line in examples
        )
        parts.append(block(shown.strip(), "console"))
    return "\n".join(parts)


def _placeholder(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper()
    name = f"{name}..." if argument.nargs == -1 else name
    return name if argument.required else f"[{name}]"


def _argument(argument: Any) -> list[str]:
    return [code(_placeholder(argument)), argument.help or ""]


def _option(option: Any, own_defaults: Mapping[str, Any]) -> list[str]:
    """Return a row of the table; a command may have its own default for a shared option."""
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    kind = "" if option.is_flag else f" {_kind(option)}"
    again = "; may be given several times" if option.multiple else ""
    return [
        f"{names}{kind}",
        code(own_defaults.get(option.name) or _default(option)),
        f"{option.help or ''}{again}",
    ]


def _kind(option: Any) -> str:
    """Return what an option takes: the choices there are, or the sort of value."""
    annotation = option.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " / ".join(code(member.value) for member in annotation)
    return {int: "N", float: "X", str: "TEXT"}.get(
        annotation, "PATH" if "Path" in str(annotation) else "TEXT"
    )


def _default(option: Any) -> str:
    if option.required:
        return "needed"
    value = option.default
    if value is None or value is False or value == () or value == [] or callable(value):
        return ""
    return str(value.value if isinstance(value, Enum) else value)


def _first_sentence(command: Any) -> str:
    return (command.help or "").split("\n\n")[0].replace("\n", " ")
