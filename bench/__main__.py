"""Runs the benchmarks and prints a table: `python -m bench --help`.

Every figure is the median of rounds in which baseline and fabric take turns on the same servers; beside it stand the
counts that say whether the work was done: sent, done, doubled, order.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import uvloop

from bench import load
from bench.systems import Baseline, Servers, Sluice, System, servers
from tests.support.otlp import receiving

SOCKETS = 50
WINDOW = 16
SCENARIOS = "idle,deltas,finals,slow,open"
Figures = dict[str, list[float]]


class Run:
    """One run of all scenarios.

    Args:
        having: the servers.
        fabric: the fleet.
        baseline: what it is compared with.
        rounds: of each scenario, of each system.
        seconds: of each load.
    """

    def __init__(self, having: Servers, fabric: Sluice, baseline: Baseline, rounds: int, seconds: float) -> None:
        self.having = having
        self.fabric = fabric
        self.baseline = baseline
        self.rounds = rounds
        self.seconds = seconds
        self.figures: Figures = defaultdict(list)
        self.counts: list[dict[str, Any]] = []

    async def closed(self, kind: str, *systems: System) -> None:
        """Closed loops, in turns."""
        for _ in range(self.rounds):
            for system in systems:
                result = load.Result()
                talkers = await load.talkers(system.url, system.headers, system.card, SOCKETS, result)
                before, cpu = await self._edge_counts(), self._cpu(system)
                if kind == "deltas":
                    await load.closed_deltas(talkers, result, WINDOW, self.seconds, system.observe)
                else:
                    await load.closed_finals(talkers, result, WINDOW, self.seconds)
                if system is self.fabric:
                    after = await self._edge_counts()
                    share = (after[0] - before[0]) / max(after[1] - before[1], 1)
                    self.figures[f"edge publishes per packet, {kind}"].append(share)
                await self._note(f"closed {kind}", system, result, talkers, cpu)
                self.figures[f"closed {kind}/{system.name}"].append(result.rate)

    async def open(self, name: str, system: System, rate: float, deltas: int) -> None:
        """An open loop at a rate."""
        result = load.Result()
        talkers = await load.talkers(system.url, system.headers, system.card, SOCKETS, result)
        cpu = self._cpu(system)
        await load.open_loop(talkers, result, rate, self.seconds, deltas)
        await self._note(name, system, result, talkers, cpu)
        self.figures[f"{name} p50 ms/{system.name}"].append(result.quantile(0.5) * 1000)
        self.figures[f"{name} p99 ms/{system.name}"].append(result.quantile(0.99) * 1000)

    async def idle(self, count: int) -> None:
        """Memory of sockets that said hello, have a channel and are silent."""
        before = self.fabric.rss("edge")
        talkers = await load.talkers(self.fabric.url, self.fabric.headers, self.fabric.card, count, load.Result())
        await asyncio.sleep(1)
        self.figures["idle socket KiB/sluice"].append((self.fabric.rss("edge") - before) / count / 1024)
        for talker in talkers:
            talker.socket.close()
        await asyncio.sleep(2)

    async def _edge_counts(self) -> tuple[float, float]:
        return (
            await self.fabric.metric("edge", "sluice_bus_messages_total"),
            await self.fabric.metric("edge", "sluice_bus_items_total"),
        )

    def _cpu(self, system: System) -> dict[str, float]:
        return {"client": time.process_time(), **system.cpu(), **self.having.cpu()}

    async def _note(
        self, name: str, system: System, result: load.Result, talkers: list[load.Talker], cpu: dict[str, float]
    ) -> None:
        spent = {part: seconds - cpu[part] for part, seconds in self._cpu(system).items()}
        calls = await system.calls()
        wanted = set(result.finals)
        seen = [call for call in calls if call in wanted]
        order: dict[str, list[str]] = defaultdict(list)
        for channel, message in seen:
            order[channel].append(message)
        asked: dict[str, list[str]] = defaultdict(list)
        for channel, message in result.finals:
            asked[channel].append(message)
        row = {
            "load": name,
            "system": system.name,
            "sent": result.sent,
            "done": result.done,
            "finals": len(result.finals),
            "acked": result.statuses["accepted"],
            "other": {k: v for k, v in result.statuses.items() if k != "accepted"},
            "missing": len(wanted - set(seen)),
            "doubled": len(seen) - len(set(seen)),
            "order": "kept" if all(order[channel] == ids for channel, ids in asked.items()) else "broken",
            "cpu_us": {part: round(seconds * 1e6 / max(result.done, 1), 1) for part, seconds in spent.items()},
            "per_second": round(result.rate),
            "p50_ms": round(result.quantile(0.5) * 1000, 1),
            "p99_ms": round(result.quantile(0.99) * 1000, 1),
        }
        self.counts.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        for talker in talkers:
            talker.socket.close()
        await asyncio.sleep(0.5)

    def median(self, name: str) -> float:
        """Of a figure."""
        return statistics.median(self.figures[name]) if self.figures[name] else float("nan")


async def run(rounds: int, seconds: float, only: set[str], folder: Path) -> Run:
    """Starts everything, runs the scenarios, stops everything."""
    async with servers() as having, Baseline.started(having) as baseline, Sluice.started(having, folder) as fabric:
        made = Run(having, fabric, baseline, rounds, seconds)
        await _scenarios(made, only, folder)
        return made


async def _scenarios(made: Run, only: set[str], folder: Path) -> None:
    await asyncio.sleep(3)
    if "idle" in only:
        await made.idle(1000)
    if "deltas" in only or "open" in only:
        await made.closed("deltas", made.baseline, made.fabric)
    if "finals" in only:
        await made.closed("finals", made.baseline, made.fabric)
    for _ in range(made.rounds if "slow" in only else 0):
        for system in (made.baseline, made.fabric):
            await made.open("500/s", system, 500, 0)
    for _ in range(made.rounds if "open" in only else 0):
        rate = 10 * made.median("closed deltas/baseline")
        await made.open("10x", made.fabric, rate, 50)
    if "traces" in only:
        await _traces(made, folder)


async def _traces(made: Run, folder: Path) -> None:
    """The fleet against the same fleet with tracing on and one packet in a hundred sampled, in turns."""
    async with receiving() as receiver:
        settings = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.01",
        }
        async with Sluice.started(made.having, folder, "traced", **settings) as traced:
            await asyncio.sleep(3)
            for kind in ("deltas", "finals"):
                made.figures[f"closed {kind}/sluice"].clear()
                await made.closed(kind, made.fabric, traced)
        made.figures["spans received"].append(len(receiver.spans))


def report(made: Run) -> str:
    """The figures against what they are to reach."""
    rows = [
        ("deltas, closed loop", made.median("closed deltas/sluice") / made.median("closed deltas/baseline"), ">= 30 x"),
        ("finals, closed loop", made.median("closed finals/sluice") / made.median("closed finals/baseline"), ">= 8 x"),
        ("open loop at 10x, p99", made.median("10x p99 ms/sluice"), "<= 50 ms"),
        ("500/s, p50", made.median("500/s p50 ms/sluice") / made.median("500/s p50 ms/baseline"), "<= 5 x"),
        ("idle socket", made.median("idle socket KiB/sluice"), "<= 16 KiB"),
        ("deltas, traced / not", made.median("closed deltas/traced") / made.median("closed deltas/sluice"), ">= 0.95"),
        ("finals, traced / not", made.median("closed finals/traced") / made.median("closed finals/sluice"), ">= 0.95"),
        ("edge publishes a packet", made.median("edge publishes per packet, deltas"), "<= 0.02"),
    ]
    lines = ["| figure | measured | to reach |", "|---|---|---|"]
    lines += [f"| {name} | {value:.3g} | {goal} |" for name, value, goal in rows if value == value]  # noqa: PLR0124 - NaN
    lines += ["", "| median of | value |", "|---|---|"]
    lines += [f"| {name} | {made.median(name):.4g} (n={len(v)}) |" for name, v in sorted(made.figures.items()) if v]
    return "\n".join(lines)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each scenario and system (default 4)")
    parser.add_argument("--seconds", type=float, default=5, help="length of each load (default 5)")
    parser.add_argument(
        "--only", default=SCENARIOS, help="some of idle, deltas, finals, slow, open, traces (default: all but traces)"
    )
    parser.add_argument("--out", type=Path, help="write figures and counts as JSON")
    parser.add_argument("--logs", type=Path, help="keep the logs of the fleet's processes in this folder")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        logs = given.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        made = uvloop.run(run(given.rounds, given.seconds, set(given.only.split(",")), logs))
    print(report(made))
    if given.out:
        given.out.write_text(json.dumps({"figures": made.figures, "counts": made.counts}, indent=1))


if __name__ == "__main__":
    main()
