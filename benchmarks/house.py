"""Measure how the code reads: modules, importers, paragraphs, long lines, public names.

python benchmarks/house.py                    (this tree)
python benchmarks/house.py --src other/src    (another one, such as an earlier commit's)
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

LONG_LINE = 100
LONG_FUNCTION = 12
"""Lines from which on a function should have paragraphs."""


def modules(src: Path) -> dict[str, Path]:
    """Return all modules of the package by their dotted names."""
    found = {}
    for path in sorted(src.rglob("*.py")):
        name = ".".join(path.relative_to(src).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imported(tree: ast.Module, known: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names & known


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield all functions and methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def public_names(tree: ast.Module) -> int:
    """Count the functions and classes of a module without an underscore."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return sum(isinstance(n, kinds) and not n.name.startswith("_") for n in tree.body)


def measured(src: Path) -> dict[str, str]:
    """Return every figure of a tree as text, by its name."""
    paths = modules(src)
    trees = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in paths.items()}
    lines = {name: path.read_text(encoding="utf-8").splitlines() for name, path in paths.items()}

    importers: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for target in imported(tree, set(paths)):
            importers[target].add(name)

    lengths, inside, blank, walls = [], 0, 0, 0
    for name, tree in trees.items():
        for function in functions(tree):
            body = lines[name][function.body[0].lineno - 1 : function.end_lineno]
            lengths.append(len(body))
            if len(body) >= LONG_FUNCTION:
                empty = sum(not line.strip() for line in body)
                inside, blank, walls = inside + len(body), blank + empty, walls + (empty == 0)

    lengths.sort()
    total = sum(map(len, lines.values()))
    cli = sum(len(text) for name, text in lines.items() if name.startswith("cfsl.cli"))
    packages = {name for name, path in paths.items() if path.name == "__init__.py"}
    single = [name for name in paths if name not in packages and len(importers[name]) == 1]
    return {
        "modules": str(len(paths) - len(packages)),
        "modules with one importer": str(len(single)),
        "lines": f"{total:,}",
        "lines in cli": f"{cli:,}",
        "lines over 100 columns": str(sum(len(x) > LONG_LINE for t in lines.values() for x in t)),
        "function length, 90th percentile": str(lengths[len(lengths) * 9 // 10]),
        "blank lines in functions of 12+ lines, %": f"{100 * blank / inside:.1f}",
        "functions of 12+ lines without a blank line": str(walls),
        "public functions and classes": str(sum(map(public_names, trees.values()))),
    }


def main() -> None:
    """Print a line for every figure."""
    parser = argparse.ArgumentParser(description="How the code reads, in figures.")
    parser.add_argument("--src", type=Path, default=Path(__file__).parent.parent / "src")
    for name, figure in measured(parser.parse_args().src).items():
        print(f"{name:<46}{figure:>8}")


if __name__ == "__main__":
    main()
