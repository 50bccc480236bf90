"""Requests to replay: two public traces, and generated sessions, which no public trace contains.

The traces are read from the folder that `LBCTL_DATA` names: Azure's LLM inference traces of 2023 (conversation and
code, CC-BY-4.0) and the first 1,000 requests of Mooncake's (Apache-2.0), whose `hash_ids` name blocks of 512 prompt
tokens.
"""

from __future__ import annotations

import csv
import json
import math
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from lbctl.simulate.engine import CostModel, saturated_rate

BLOCK = 512
MOONCAKE = "mooncake-arxiv-first-1000.jsonl"
"""File with requests of Mooncake's trace."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: seconds from the start, tokens, the blocks of its prompt, its session."""

    at: float
    prompt: int
    answer: int
    blocks: tuple[int, ...] = ()
    session: str | None = None


def azure(load: float, speed: float, seconds: float, seed: int, kind: str = "conversation") -> list[Arrival]:
    """Return the lengths and bursts of one of Azure's traces, from a random position, at this load of replicas with
    these speeds."""
    rows = list(csv.DictReader((_data() / f"azure-2023-{kind}.csv").open(encoding="utf-8")))
    times = [datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp() for row in rows]
    lengths = [(max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"]))) for row in rows]
    prompt, answer = (sum(column) / len(rows) for column in zip(*lengths, strict=True))
    rate = load * saturated_rate(1.0, prompt, answer) * speed
    count = int(rate * seconds)
    first = random.Random(seed).randrange(len(rows) - count)
    window = slice(first, first + count)
    begin, end = times[first], times[first + count - 1]
    scale = seconds / (end - begin)
    return [Arrival((at - begin) * scale, *size) for at, size in zip(times[window], lengths[window], strict=True)]


def mooncake(scale: float) -> list[Arrival]:
    """Return Mooncake's requests, with their times multiplied by `scale`."""
    lines = (_data() / MOONCAKE).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    jitter = random.Random(1)
    found = [
        Arrival(
            (row["timestamp"] / 1000 + 3 * jitter.random()) * scale,
            row["input_length"],
            max(1, row["output_length"]),
            tuple(row["hash_ids"]),
        )
        for row in rows
    ]
    return sorted(found, key=lambda item: item.at)


def sessions(load: float, speed: float, seconds: float, seed: int, shared: int = 2) -> list[Arrival]:
    """Return conversations and agents of different length.

    Each turn sends all previous text, after a shared beginning.
    """
    rng = random.Random(seed)
    rate = load * speed * 1.0 / (CostModel().p * 2200 + 0.003)
    found = [item for _ in range(int(seconds * rate / 5)) for item in _session(rng, seconds, shared)]
    return sorted((item for item in found if 0 <= item.at < seconds), key=lambda item: item.at)


def common_prompt(tokens: int, rate: float, seconds: float, seed: int) -> list[Arrival]:
    """Return `rate` questions per second without history, which all begin with the same prompt of `tokens` tokens."""
    rng, at, found = random.Random(seed), 0.0, list[Arrival]()
    while (at := at + rng.expovariate(rate)) < seconds:
        prompt = tokens + 1 + int(rng.lognormvariate(math.log(100), 0.8))
        answer = 1 + int(rng.lognormvariate(math.log(200), 0.7))
        found.append(Arrival(at, prompt, answer, tuple(range(tokens // BLOCK))))
    return found


def _session(rng: random.Random, seconds: float, shared: int) -> Iterator[Arrival]:
    at, name = rng.uniform(-120, seconds), f"s{rng.getrandbits(48)}"
    turns = min(60, 1 + int(rng.lognormvariate(1.2, 1.0)))
    system = rng.randrange(3)
    prompt = shared * BLOCK
    for _ in range(turns):
        prompt += int(rng.lognormvariate(math.log(400), 0.9))
        answer = 1 + int(rng.lognormvariate(math.log(150), 0.8))
        blocks = tuple(hash((system, index) if index < shared else (name, index)) for index in range(prompt // BLOCK))
        yield Arrival(at, prompt, answer, blocks, name)
        prompt += answer
        at += answer * 0.04 + rng.lognormvariate(math.log(8), 0.8)


def _data() -> Path:
    if "LBCTL_DATA" not in os.environ:
        raise SystemExit("set LBCTL_DATA to the directory that contains the traces (see docs/develop/picking-study.md)")
    return Path(os.environ["LBCTL_DATA"])
