"""`lbctl gpus`, which prints the built-in GPU table and generates the corresponding page in the docs.

Both the command and the page show each figure's source and method. The command does not accept a fleet, and shows only
built-in figures, which `gpus:` in a fleet can override.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from dataclasses import asdict

import click

from lbctl.cli.command import Command
from lbctl.cli.options import output_option
from lbctl.compile.gpus import GPUS, MLPERF_RULE, SCALE, SPECIFICATION_RULE, Gpu

_WIDTH = 100
_COLUMNS = ("NAME", "THROUGHPUT", "MEMORY", "SOURCE")


@click.command("gpus", cls=Command, examples="lbctl gpus -o json")
@output_option("gpus")
def command(form: str) -> None:
    """Print the built-in GPU table.

    The table shows the relative throughput of each GPU (A100-80GB = 5), and the source and method of each figure.
    """
    click.echo({"table": _table, "json": _json, "yaml": _yaml}[form](GPUS.values()), nl=False)


def page() -> str:
    """Return the text of docs/reference/gpus.md."""
    rows = "\n".join(
        f"| {gpu.name} | {gpu.throughput:g} | {_memory(gpu)} | {gpu.source} | {gpu.method} |" for gpu in GPUS.values()
    )
    return (
        "<!-- Generated from lbctl/compile/gpus.py by `python -m tests.docs.regenerate`; edit the table there. -->\n\n"
        "# GPUs\n\n"
        "`lbctl gpus` prints this table (also with `-o json` and `-o yaml`). If a replica has a `gpu` but no `weight`, "
        "its capacity is throughput × `gpu_count`. `gpus:` in a fleet file adds GPUs and overrides these figures.\n\n"
        f"{SCALE}\n\n"
        "| name | throughput | memory | source | method |\n|---|---|---|---|---|\n"
        f"{rows}\n\n"
        f"## Rules\n\n{MLPERF_RULE}\n\n{SPECIFICATION_RULE}\n"
    )


def _table(gpus: Iterable[Gpu]) -> str:
    rows = [(gpu.name, f"{gpu.throughput:g}", _memory(gpu), gpu.source) for gpu in gpus]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    lines = [_line(_COLUMNS, widths)]
    for row in rows:
        lines += [_line(row, widths), _wrapped(GPUS[row[0]].method, "    ")]
    rules = (_wrapped(text, "") for text in (SCALE, MLPERF_RULE, SPECIFICATION_RULE))
    return "\n".join(lines) + "\n\n" + "\n\n".join(rules) + "\n"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    name, throughput, memory, source = (
        f"{cell:>{width}}" if column in (1, 2) else f"{cell:<{width}}"
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"{name}  {throughput}  {memory}  {source}".rstrip()


def _wrapped(text: str, indent: str) -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _memory(gpu: Gpu) -> str:
    return "unknown" if gpu.memory_gb is None else f"{gpu.memory_gb:g} GB"


def _json(gpus: Iterable[Gpu]) -> str:
    return json.dumps([asdict(gpu) for gpu in gpus], indent=2, ensure_ascii=False) + "\n"


def _yaml(gpus: Iterable[Gpu]) -> str:
    import yaml

    text: str = yaml.safe_dump([asdict(gpu) for gpu in gpus], sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text
