"""Make docs/develop/benchmarks.md, its charts and the headline of the README from the file of results.

A chart and a sentence answer each question. Tables show where lbctl loses and wins, costs, and all figures.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from tests.benchmarks.peers import checks, figures
from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.charts import chart
from tests.benchmarks.peers.client import ANSWER_TIMEOUT
from tests.benchmarks.peers.figures import Figure
from tests.benchmarks.peers.panels import COST_CASES, panels
from tests.benchmarks.peers.prompts import BLOCK
from tests.benchmarks.peers.results import BySeed, Result, Results
from tests.benchmarks.peers.systems import System
from tests.benchmarks.peers.table import Table, charted, table
from tests.benchmarks.peers.trial import FAILED
from tests.benchmarks.peers.verdicts import Comparison, reasons, sorted_by_size
from tests.benchmarks.peers.workloads import SEQUENCES
from tests.support.paths import ROOT
from tests.support.processes.binaries import KINDS

RESULTS = ROOT / "docs" / "develop" / "benchmarks.jsonl"
README = ROOT / "README.md"
_START, _END = "<!-- benchmarks -->\n", "<!-- /benchmarks -->"
"""Marks around the generated part of the README."""
HEADLINES = (
    ("mixed-85", figures.TTFT_P99), ("prefixes-150", figures.TTFT_P99), ("agents", figures.TTFT_P99),
    ("wedged", figures.FAILED),
)  # fmt: skip
"""Cases and figures in the README. They do not depend on the results."""
_PROXIES = "docs/develop/benchmarks.md#which-proxy-suits-lbctl-pick"
_BUSY = 0.9
"""Busy fraction of all cores above which a case is marked."""
_VERDICTS = {
    "better": "performs better than the best of the other systems in",
    "worse": "performs worse than the best of the other systems in",
    "equal": "shows no measurable difference from the best of the other systems in",
}
_COLUMNS = (
    figures.TTFT_P50, figures.TTFT_P99, figures.WHOLE_P50, figures.WHOLE_P99, figures.FAILED, figures.TOKENS,
    figures.CACHED, figures.SHARE_ERROR, figures.CPU, figures.MEMORY,
)  # fmt: skip
_LLM_D = """\
llm-d's picker requires Kubernetes, so it is not measured here. [Its authors' figures](https://github.com/llm-d/llm-d/pull/2071)
were measured with eight replicas of Qwen3-32B on 16 H100 GPUs. Compared with a Kubernetes Service, llm-d's precise
prefix routing increases peak throughput from 6,986 to 14,892 tokens/s and reduces the 90th percentile of the time to
the first token from 135.5 s to 0.26 s."""


def pages(whole: Table) -> dict[str, Callable[[], str]]:
    """Return for each generated file in the repository the function that makes its text."""
    return {
        "docs/develop/benchmarks.md": partial(page, whole),
        README.name: lambda: readme(whole, README.read_text(encoding="utf-8")),
        **{f"docs/images/{name}": partial(chart, each) for name, each in panels(whole).items()},
    }


def write(results: Results) -> None:
    """Write the page, its charts and the headline of the README."""
    for name, text in pages(table(results)).items():
        (ROOT / name).write_text(text(), encoding="utf-8")


def page(whole: Table) -> str:
    """Return the text of the page."""
    sections = [
        *_introduction(whole),
        *(line for group in whole.groups for line in _question(whole, group)),
        *_verdicts(whole),
        *_costs(whole),
        *_method(whole),
        "## All figures\n",
        "CPU and memory exclude lbctl's control plane, which [has its own columns](#what-does-a-request-cost).\n",
        *(line for case in whole.cases for line in _case(whole, case)),
    ]
    return "\n".join(sections).rstrip("\n") + "\n"


# ── The answers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _introduction(whole: Table) -> Iterator[str]:
    yield "<!-- Generated from docs/develop/benchmarks.jsonl by `python -m tests.docs.regenerate`; do not edit. -->\n"
    yield "# Benchmarks\n"
    yield """\
This page compares lbctl with other routers for model servers, and with nginx, HAProxy and Envoy configured as their
documentation recommends. All routers and proxies are real. The model servers are simulated: they implement continuous
batching, a prefix cache, and vLLM's metrics and KV events, and they stream responses.
"""
    if machine := whole.machine:
        versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
        processors = f"{machine['cores']} cores ({machine['processor']})"
        yield f"The results were measured on {machine['date']} with {versions}."
        yield f"The machine has {processors} and {machine['memory_gib']:.0f} GiB of memory."
        yield f"All results are in [{RESULTS.name}]({RESULTS.name}).\n"
    yield from _missing(whole)
    if compared := whole.comparisons():
        yield f"{_counts(compared)} [Losses](#where-lbctl-loses) and [wins](#where-lbctl-wins) are listed below.\n"
    yield """\
- "TTFT" is the time to the first token, and "whole" is the time to the last token. "p50" is the median, and "p99" is
  the 99th percentile.
- "lbctl static" is a proxy with a configuration from `lbctl render`. "lbctl pick" is a proxy managed by `lbctl serve`,
  with a picker that chooses a replica for each request.
- Each chart has one bar per product, which shows its best configuration for the case. Shorter bars are better. The
  line on a bar shows the value's 95 % confidence interval. Bars and lines that do not fit into the chart are truncated.

The complete results are listed under [All figures](#all-figures).
"""


def _counts(compared: Sequence[Comparison]) -> str:
    count = Counter(each.verdict for each in compared)
    return (
        f"In {len(compared)} comparisons with the best of the other systems, lbctl performs better in "
        f"{count['better']} and worse in {count['worse']}. In {count['equal']}, the difference is not measurable."
    )


def _missing(whole: Table) -> Iterator[str]:
    """Yield the cases and systems that ran with fewer seeds, or not at all."""
    short = []
    for case in whole.cases:
        compared = whole.systems[case.name]
        left: dict[int, list[str]] = {}
        for each in compared:
            left.setdefault(len(whole.of(case).get(each.name, ())), []).append(each.name)
        left.pop(whole.seeds, None)
        for count, names in left.items():
            which = "all systems" if len(names) == len(compared) else " and ".join(names)
            short.append(f"{case.name}: {which} ({count} of {whole.seeds} seeds)")
    if short:
        yield f"**Not run, or run with fewer seeds:** {'; '.join(short)}.\n"


def _question(whole: Table, group: str) -> Iterator[str]:
    question = whole.groups[group]
    yield f"## {question}\n"
    if cases := [*whole.run(group)]:
        yield f"{_answer(whole, cases)}\n"
        yield f"![{question}](../images/benchmarks-{group}.svg)\n"
    else:
        yield "Not run yet.\n"


def _answer(whole: Table, cases: Sequence[Case]) -> str:
    """Return in which of the cases lbctl is better or worse: by the figures in the chart, and by all others."""
    shown = {case.name: compared for case in cases if (compared := whole.comparison(case, charted(case)))}
    if not shown:
        return "A comparison needs at least two seeds."
    sentences = []
    for figure in dict.fromkeys(compared.figure for compared in shown.values()):
        found: dict[str, list[str]] = {}
        for name, compared in shown.items():
            if compared.figure is figure and not compared.is_empty:
                found.setdefault(_VERDICTS[compared.verdict], []).append(
                    f"“{whole.case(name).title}” ({_mode(compared)})"
                )
        if found:
            parts = [f"{verdict} {_listed(titles)}" for verdict, titles in found.items()]
            sentences.append(f"For {figure.title}, lbctl {'; it '.join(parts)}.")
    if empty := [f"“{whole.case(name).title}”" for name, compared in shown.items() if compared.is_empty]:
        sentences.append(f"No requests failed with lbctl or with the best of the other systems in {_listed(empty)}.")
    sentences += _others(whole, shown)
    return " ".join(sentences)


def _others(whole: Table, shown: Mapping[str, Comparison]) -> Iterator[str]:
    """Yield a sentence with the losses that are not in the chart, and one with the wins."""
    known = {(name, _mode(compared), compared.figure) for name, compared in shown.items()}
    for verdict, title in (("worse", "losses"), ("better", "wins")):
        found: dict[str, dict[str, list[str]]] = {}
        for each in whole.comparisons():
            if each.case in shown and each.verdict == verdict and (each.case, each.mode, each.figure) not in known:
                found.setdefault(each.case, {}).setdefault(each.mode, []).append(each.figure.title)
        parts = [
            f"“{whole.case(name).title}” ({'; '.join(f'{mode}: {_listed(names)}' for mode, names in modes.items())})"
            for name, modes in found.items()
        ]
        if parts:
            yield f"Other {title}: {_listed(parts)}."


def _mode(compared: Comparison) -> str:
    return compared.own.removeprefix("lbctl ").partition(",")[0]


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _verdicts(whole: Table) -> Iterator[str]:
    """Yield the rule of the comparison, with the tables of losses and wins."""
    compared, why = whole.comparisons(), reasons()
    titles = {case.name: case.title for case in whole.cases}
    yield "## Where lbctl loses\n"
    yield f"""\
For each case, and for each lbctl mode that the documentation recommends for it, the best of lbctl's three proxies is
compared with the best of the other systems. Each value is the mean of all seeds, and the lowest value is the best. With
the same seed, all systems receive the same requests at the same times, so the difference is calculated for each seed. A
difference is significant if its 95 % confidence interval, based on Student's t distribution, does not include zero. The
tables list all significant differences, starting with the largest relative difference. About
{0.025 * len(compared):.0f} of the {len(compared)} comparisons can be expected to appear in each table by chance.
"""
    yield from _verdict_table([*sorted_by_size(compared, "worse")], titles, why)
    yield "## Where lbctl wins\n"
    yield from _verdict_table([*sorted_by_size(compared, "better")], titles)
    yield from _proxies(whole)


def _proxies(whole: Table) -> Iterator[str]:
    """Yield the whole p99 of `pick` with each proxy, where it is a loss with nginx or HAProxy."""
    compared = _by_proxy(whole)
    if not compared:
        return
    yield "## Which proxy suits lbctl pick?\n"
    yield (
        f"{_best_proxy(compared)} The table lists the cases in which it is worse with nginx or HAProxy. "
        "Losses are in bold.\n"
    )
    yield f"| case, whole p99 | {' | '.join(f'pick, {name}' for name in KINDS)} | best of the others |"
    yield "|---" * (len(KINDS) + 2) + "|"
    for case, proxies in compared.items():
        if _loses_without_envoy(proxies):
            peer = next(iter(proxies.values()))
            other = f"{peer.figure.text(peer.peer_mean)} ({peer.peer})"
            yield f"| {whole.case(case).title} | {' | '.join(_emphasized(proxies.get(it)) for it in KINDS)} | {other} |"
    yield ""


def _by_proxy(whole: Table) -> dict[str, dict[str, Comparison]]:
    found = {case.name: whole.by_proxy(case, figures.WHOLE_P99) for case in whole.cases}
    return {case: proxies for case, proxies in found.items() if proxies}


def _loses_without_envoy(proxies: Mapping[str, Comparison]) -> bool:
    return any(each.verdict == "worse" for name, each in proxies.items() if name != "envoy")


def _emphasized(compared: Comparison | None) -> str:
    if compared is None:
        return ""
    value = compared.figure.text(compared.own_mean)
    return f"**{value}**" if compared.verdict == "worse" else value


def _best_proxy(compared: Mapping[str, Mapping[str, Comparison]]) -> str:
    """Return in how many cases each proxy suits `pick`."""
    best = sum(min(each, key=lambda name: each[name].own_mean) == "envoy" for each in compared.values())
    worse = sum(map(_loses_without_envoy, compared.values()))
    with_envoy = sum(each["envoy"].verdict == "worse" for each in compared.values() if "envoy" in each)
    return (
        f"With Envoy, lbctl pick has the lowest 99th percentile of the time to the last token in {best} of "
        f"{len(compared)} cases, and is worse than the best of the other systems in {with_envoy}. With nginx or "
        f"HAProxy, it is worse in {worse}."
    )


def _verdict_table(
    compared: Sequence[Comparison],
    titles: Mapping[str, str],
    why: Mapping[tuple[str, str, str], str] | None = None,
) -> Iterator[str]:
    if not compared:
        yield "Nowhere in these results.\n"
        return
    reason_head = ("", "") if why is None else (" why |", "---|")
    yield f"| case | mode | figure | lbctl | best of the others | difference |{reason_head[0]}"
    yield f"|---|---|---|---|---|---|{reason_head[1]}"
    for each in compared:
        sides = f"{_side(each, each.own)} | {_side(each, each.peer)}"
        row = f"| {titles[each.case]} | {each.mode} | {each.figure.title} | {sides} |"
        reason = "" if why is None else f" {why.get((each.case, each.mode, each.figure.name), 'not yet explained')} |"
        yield f"{row} {_change(each)} |{reason}"
    yield ""


def _side(compared: Comparison, system: str) -> str:
    """Return the value of one side with the name of its system. The mode of lbctl is in another column."""
    value = compared.own_mean if system == compared.own else compared.peer_mean
    return f"{compared.figure.text(value)} ({system.removeprefix(f'lbctl {compared.mode}, ')})"


def _change(compared: Comparison) -> str:
    low, middle, high = (
        f"{value:+#.3g}".rstrip(".").replace("-", "−")
        for value in (compared.change.low, compared.change.middle, compared.change.high)
    )
    return f"{middle} {compared.figure.unit} ({low} to {high})"


def _costs(whole: Table) -> Iterator[str]:
    yield "## What does a request cost?\n"
    yield """\
The chart shows the processor time per request and the memory use under load for each product's most efficient
configuration. Both include lbctl's control plane, which runs at fixed intervals. Its processor time per request
therefore decreases as the request rate increases.
"""
    run = [case for case in whole.cases if case.name in COST_CASES and whole.of(case)]
    if not run:
        yield "Not run yet.\n"
        return
    yield "![What does a request cost?](../images/benchmarks-costs.svg)\n"
    columns = (figures.CPU, figures.CONTROL_CPU, figures.MEMORY, figures.CONTROL_MEMORY)
    for case in run:
        yield from _figures(case.title, whole.of(case), columns)


# ── How it is measured ───────────────────────────────────────────────────────────────────────────────────────────────


def _method(whole: Table) -> Iterator[str]:
    yield "## How to run it\n"
    yield """\
`make bench-peers` installs the routers into `.venv/peers`, runs all cases, and writes this page. This takes up to an
hour on two cores, or 35 minutes with `ARGS="--seeds 3"`. Each result is immediately stored in
`docs/develop/benchmarks.jsonl`, so an interrupted run can be resumed to produce the missing results. To measure all
cases again, for example after a change to lbctl, delete the file. With `--results new.jsonl`, the results are stored in
a different file, and this page is not changed.

| case | command | limiting factor |
|---|---|---|"""
    for case in whole.cases:
        yield f'| {case.title} | `make bench-peers ARGS="--case {case.name} --results new.jsonl"` | {case.limit} |'
    yield f"""
## How it is measured

- Each system has a separate set of model servers. All systems in a case run in parallel with the same requests. Each
  case is run {whole.seeds} times with different seeds, and each run starts with a different system. LiteLLM does not
  run in parallel with the others, because it needs more processor time.
- All systems use the same health checks: every {checks.INTERVAL} s, with a timeout of {checks.TIMEOUT} s. After
  {checks.FAILURES} failed checks, a replica gets no requests until {checks.SUCCESSES} checks succeed. LiteLLM, and
  nginx without `lbctl serve`, do not support active checks. SMG and lbctl's picker read metrics every second.
- All systems use the replicas' speeds as weights, except SMG and vllm-router, which do not support weights.
- The model servers run in real time. The fastest one takes 5 ms per token, which is about as fast as a model with
  8 billion parameters on an H100. A batch contains at most {SEQUENCES} requests, a cache block contains {BLOCK}
  tokens, and each event in a stream contains 16 tokens.
- A client disconnects if it receives no data for {ANSWER_TIMEOUT:.0f} s. A failed request is counted as if it had taken
  {FAILED:.0f} s. Its time to the first token is counted as {FAILED:.0f} s only if it did not get a first token.
  Clients open a new connection for each request.
- Each figure is the mean of the seeds, with a 95 % confidence interval based on Student's t distribution. This also
  applies to percentiles: the requests in a run affect each other, so only the runs are independent.
- "Share error" is the percentage of requests that should have gone to a different replica, according to the replicas'
  capacities.
- "tokens/s" is the number of tokens generated per second for all successful requests.
- "CPU" is the processor time in ms per request used by a proxy or router (including its workers) and by lbctl's picker.
  "Control" is `lbctl serve` without the picker. "Memory" is the proportional set size.

{_LLM_D}

The default policies of SMG and vllm-router are measured in all cases. Their other policies for prefixes and sessions
are measured in the cases with common prefixes, and their load-based policies in the other cases. Bounded hashing
requires sessions. `lbctl static` is measured where lbctl's documentation recommends it. LiteLLM is measured in only one
case, because it does not run in parallel with the others.

| system | cases | settings | source |
|---|---|---|---|"""
    systems: dict[str, System] = {each.name: each for case in whole.cases for each in whole.systems[case.name]}
    for each in systems.values():
        source = f"<{each.source}>" if each.source.startswith("http") else f"`{each.source}`" if each.source else ""
        yield f"| {each.name} | {_cases(whole, each.name)} | {each.settings} | {source} |"
    yield ""


def _cases(whole: Table, system: str) -> str:
    """Return the names of the cases with a system."""
    names = {case: system in (each.name for each in group) for case, group in whole.systems.items()}
    inside, outside = ([case for case, is_in in names.items() if is_in is wanted] for wanted in (True, False))
    if not outside:
        return "all"
    return f"all except {', '.join(outside)}" if len(outside) < len(inside) else ", ".join(inside)


# ── All figures ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _case(whole: Table, case: Case) -> Iterator[str]:
    yield f"### {case.title}\n"
    yield f"{case.description}\n"
    systems = whole.of(case)
    if not systems:
        yield "Not run yet.\n"
        return
    yield from _figures("", systems, _COLUMNS)
    if failures := [f"{name}: {text}" for name, group in systems.items() if (text := _failures(group))]:
        yield f"Why requests failed: {'; '.join(failures)}.\n"
    yield f"{_harness([each for group in systems.values() for each in group.values()])}\n"


def _figures(title: str, systems: Mapping[str, BySeed], columns: Sequence[Figure]) -> Iterator[str]:
    """Yield a table with a row for each system. Columns without a value are left out."""
    every = [each for group in systems.values() for each in group.values()]
    shown = [column for column in columns if not all(math.isnan(column.of(each)) for each in every)]
    units = [f"{column.title} ({column.unit})" if column.unit else column.title for column in shown]
    yield f"| {' | '.join([title, *units])} |"
    yield "|---" * (len(shown) + 1) + "|"
    for name, group in systems.items():
        yield f"| {name} | {' | '.join(_cell(column, [*group.values()]) for column in shown)} |"
    yield ""


def _cell(figure: Figure, results: Sequence[Result]) -> str:
    value = figure.of_seeds(results)
    low, middle, high = map(figure.form, (max(0.0, value.low), value.middle, value.high))
    return middle if low == high else f"{middle} ({low}–{high})"


def _failures(group: BySeed) -> str:
    counts: Counter[str] = Counter()
    for result in group.values():
        counts.update(result.reasons)
    return ", ".join(f"{count} × {reason}" for reason, count in counts.most_common())


def _harness(results: Sequence[Result]) -> str:
    """Return whether the machine or the benchmark itself limited the results."""
    requests = min(
        sum(each.requests for each in results if each.system == name) for name in {it.system for it in results}
    )
    busy = max(each.harness.machine for each in results)
    mark = " **This may have affected the times.**" if busy > _BUSY else ""
    return (
        f"Each system received at least {requests:,} requests. "
        f"All cores were busy for at most {busy:.0%} of any run.{mark} "
        f"Clients sent requests at most {max(each.harness.late_ms for each in results):.0f} ms late (99th percentile)."
    )


# ── The headline of the README ───────────────────────────────────────────────────────────────────────────────────────


def readme(whole: Table, text: str) -> str:
    """Return the text of the README with the current headline."""
    head, start, rest = text.partition(_START)
    _, end, tail = rest.partition(_END)
    if not start or not end:
        raise ValueError(f"the README does not contain {_START.strip()} and {_END}")
    headline = "".join(f"{line}\n" for line in _headline(whole))
    return f"{head}{start}{headline}{end}{tail}"


def _headline(whole: Table) -> Iterator[str]:
    compared = whole.comparisons()
    yield """\
The [benchmarks](docs/develop/benchmarks.md) compare lbctl with SMG, vllm-router, manually configured proxies and, in
one case, LiteLLM, in front of simulated model servers. They also list the cases in which lbctl performs worse."""
    if not compared:
        return
    yield f"{_counts(compared)}\n"
    yield f"{_best_proxy(_by_proxy(whole))} [Which proxy suits lbctl pick?]({_PROXIES})\n"
    yield "| case | figure | lbctl | best of the others | lbctl is |"
    yield "|---|---|---|---|---|"
    for name, figure in HEADLINES:
        case = whole.case(name)
        if each := whole.comparison(case, figure):
            own, peer = figure.text(each.own_mean), figure.text(each.peer_mean)
            verdict = "not measurably different" if each.verdict == "equal" else each.verdict
            yield f"| {case.title} | {figure.title} | {own} ({each.own}) | {peer} ({each.peer}) | {verdict} |"
    if worst := next(sorted_by_size(compared, "worse"), None):
        yield (
            f"\nThe largest loss is {worst.figure.title} in “{whole.case(worst.case).title}”: "
            f"{worst.figure.text(worst.own_mean)} ({worst.own}), compared with {worst.figure.text(worst.peer_mean)} "
            f"({worst.peer})."
        )
