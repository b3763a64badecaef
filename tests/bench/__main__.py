"""Runs the benchmark and prints its report as Markdown.

python -m tests.bench                          # a few minutes, quiet machine wanted
python -m tests.bench --sealed 1000000         # and how a claim fares beside a million sealed rows
python -m tests.bench --only-counting          # what counting costs a request, and nothing else
python -m tests.bench --output report.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from example_project.serving import ApiServer

from .command import run

WORKERS = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100, help="rounds in which each variant has one block")
    parser.add_argument("--requests", type=int, default=20, help="requests of each client in a block")
    parser.add_argument("--clients", type=int, default=4, help="clients at once where throughput is measured")
    parser.add_argument("--sealed", type=int, default=0, help="sealed rows for the measurement of claims; 0: none")
    parser.add_argument("--only-counting", action="store_true", help="what counting costs a request, and nothing else")
    run(parser, _report)


def _report(options: argparse.Namespace) -> Iterator[str]:
    from . import counting, growth, measure, report

    environment = {"DJANGO_SETTINGS_MODULE": "tests.bench.settings", "GUNICORN_CMD_ARGS": "--worker-class sync"}
    counted = list(counting.sentences(counting.measure(options.rounds * options.requests, environment)))
    if options.only_counting:
        yield from counted
        return
    grown: list[str] = []
    if options.sealed:
        growth.fill(options.sealed)
        grown = ["", *growth.sentences(options.sealed, *growth.measure(options.rounds))]
    with ApiServer(environment, workers=WORKERS, threads=1) as server:
        alone = measure.rounds(server, options.rounds, clients=1, requests=options.requests)
        together = measure.rounds(server, options.rounds, clients=options.clients, requests=options.requests)
    yield f"`{' '.join(['python -m tests.bench', *sys.argv[1:]])}` on:"
    yield ""
    yield from (f"- {fact}" for fact in report.machine())
    yield ""
    yield f"One client, {options.rounds} rounds of {options.requests} requests each:"
    yield ""
    yield from report.latency_table(alone)
    yield ""
    yield from report.beside_peers(alone)
    yield ""
    yield "Processor time of the same requests:"
    yield ""
    yield from report.processor_table(alone)
    yield ""
    yield f"{options.clients} clients at once, {WORKERS} workers:"
    yield ""
    yield from report.throughput_table(together)
    yield ""
    yield from counted
    yield from grown


if __name__ == "__main__":
    main()
