"""From rounds of measurements to tables."""

from __future__ import annotations

import os
import platform
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

from django.db import connection

from .measure import PEERS, UNPROTECTED, VARIANTS, Round, Turn, Variant


def machine() -> Iterator[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('server_version'), current_setting('fsync')")
        postgres, fsync = cursor.fetchone()
    packages = ", ".join(f"{name} {version(name)}" for name in ("Django", "djangorestframework", "psycopg", "gunicorn"))
    yield f"{os.cpu_count()} cores ({_processor()}), {platform.system()}"
    yield f"PostgreSQL {postgres.split()[0]}, fsync {fsync}, on the same machine"
    yield f"Python {platform.python_version()}, {packages}"


def _processor() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in _lines(Path("/proc/cpuinfo"))
        if line.startswith("model name")
    ]  # fmt: skip
    return models[0] if models else platform.processor() or platform.machine()


def _lines(path: Path) -> Sequence[str]:
    return path.read_text().splitlines() if path.exists() else ()


def latency_table(rounds: Sequence[Round]) -> Iterator[str]:
    seconds = _by_variant(rounds, lambda turn: median(turn.block.latencies))
    bare = median(seconds[UNPROTECTED.name])
    rows = [
        (each.name, _ms(seconds[each.name]), f"{bare / median(seconds[each.name]):.2f}", *_added(seconds, each))
        for each in VARIANTS
    ]
    return table(("", "median, ms", "unprotected = 1", "added, ms", "added, times the floor's"), rows)


def beside_peers(rounds: Sequence[Round]) -> Iterator[str]:
    """What ours add, times what the cheapest of other packages adds."""
    seconds = _by_variant(rounds, lambda turn: median(turn.block.latencies))
    if not PEERS:
        return
    cheapest = min(PEERS, key=lambda each: median(seconds[each.name]))
    for each in VARIANTS:
        if each.floor and not each.replay:
            added = [_over(seconds, each.name), _over(seconds, cheapest.name)]
            ratio = interval(added, lambda ours, theirs: median(ours) / median(theirs))
            yield f"{each.name} adds {ratio} times what {cheapest.name} adds."


def processor_table(rounds: Sequence[Round]) -> Iterator[str]:
    application = _by_variant(rounds, lambda turn: turn.application)
    database = _by_variant(rounds, lambda turn: turn.database)
    both = _by_variant(rounds, lambda turn: turn.application + turn.database)
    rows = [
        (each.name, _ms(application[each.name]), _ms(database[each.name]), *_added(both, each)) for each in VARIANTS
    ]
    return table(("", "application, ms", "database, ms", "added, ms", "added, times the floor's"), rows)


def throughput_table(rounds: Sequence[Round]) -> Iterator[str]:
    rates = {name: median(values) for name, values in _by_variant(rounds, lambda turn: turn.block.throughput).items()}
    rows = [(name, f"{rate:.0f}", f"{rate / rates[UNPROTECTED.name]:.2f}") for name, rate in rates.items()]
    return table(("", "requests/s", "unprotected = 1"), rows)


Series = dict[str, list[float]]


def _by_variant(rounds: Sequence[Round], value: Callable[[Turn], float]) -> Series:
    return {each.name: [value(each_round[each.name]) for each_round in rounds] for each in VARIANTS}


def _added(series: Series, variant: Variant) -> tuple[str, str]:
    """What protection adds, and how that compares with the floor: medians of what was seen within each round, whose
    blocks met the same machine. In brackets, where nine in ten of such medians would lie."""
    if variant is UNPROTECTED or variant.replay:
        return "", ""
    added = _over(series, variant.name)
    in_ms = interval([added], lambda ours: median(ours) * 1000)
    if variant.floor is None:
        return in_ms, ""
    return in_ms, interval([added, _over(series, variant.floor)], lambda ours, floor: median(ours) / median(floor))


def _over(series: Series, name: str) -> list[float]:
    return [value - bare for value, bare in zip(series[name], series[UNPROTECTED.name], strict=True)]


def _ms(seconds: Sequence[float]) -> str:
    return f"{median(seconds) * 1000:.2f}"


def interval(columns: Sequence[Sequence[float]], statistic: Callable[..., float], digits: int = 2) -> str:
    """A statistic of the rounds, and how far it moves when rounds are drawn again and again (the bootstrap)."""
    rounds = list(zip(*columns, strict=True))
    dice = random.Random(1)
    redrawn = sorted(statistic(*zip(*dice.choices(rounds, k=len(rounds)), strict=True)) for _ in range(1000))
    middle, lower, upper = (f"{value:.{digits}f}" for value in (statistic(*columns), redrawn[50], redrawn[-51]))
    return f"{middle} ({lower} to {upper})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|" + "|".join("---" if column == 0 else "---:" for column in range(len(head))) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"
