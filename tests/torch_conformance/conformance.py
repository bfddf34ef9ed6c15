#!/usr/bin/env python3
"""torch's own tests of its backends, with gradwire and with gloo: both must pass the same.

    tests/torch_conformance/conformance.py                          all, 2 and 4 ranks
    tests/torch_conformance/conformance.py --world-size 2 --backend both --subset ci
    tests/torch_conformance/conformance.py --only 'test_ddp_*' --world-size 2 --backend gradwire
    tests/torch_conformance/conformance.py --subset ci --debug-detail
    tests/torch_conformance/conformance.py --json > conformance.json

The tests are those of torch/testing/_internal/distributed/distributed_test.py in torch's wheel, the
ones that torch runs for gloo alone included. Gradients travel uncompressed (GRADWIRE_CODEC=none),
since torch's tests ask for exact sums. The exit code is 0 when gradwire passes what gloo passes,
except for known differences, 1 when not, 2 when the tests cannot run here.

Many of torch's tests have deadlines of a second or two, which a machine that stands still for a
moment breaks on any backend. So a test that one backend alone passes is run again, AGAIN times, by
the one that failed, alone; what passes every time is reported as passed, with the first failure.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ci_subset import CI

SUITE = Path(__file__).resolve().parent / "torch_suite.py"
BACKENDS = ["gloo", "gradwire"]
OUTCOMES = ["passed", "failed", "skipped"]
AGAIN = 5

# Known differences: who alone passes a test, and why.
KNOWN = {
    "test_ddp_logging_data_cpu": (
        "gloo",
        "asks that DDP log the backend's name; torch logs «custom» for every backend but its own",
    ),
}
KNOWN_IN_DETAIL = dict.fromkeys(
    [
        "test_DistributedDataParallelCPU",
        "test_DistributedDataParallelCPU_grad_is_view",
        "test_accumulate_gradients_no_sync",
        "test_accumulate_gradients_no_sync_allreduce_hook",
        "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
        "test_accumulate_gradients_no_sync_grad_is_view",
        "test_ddp_create_graph",
        "test_grads_same_across_ranks_with_no_sync",
        "test_static_graph_api_cpu",
    ],
    (
        "gradwire",
        "torch 2.13 crashes in c10d::Logger::set_env_variables when a model is wrapped in DDP with "
        "gloo under TORCH_DISTRIBUTED_DEBUG=DETAIL",
    ),
)


class Unavailable(Exception):
    """The tests cannot run here."""


@dataclass
class Report:
    """What came of one test."""

    name: str
    outcome: str
    why: str
    seconds: float


@dataclass
class Run:
    """One backend's reports at one world size."""

    backend: str
    world_size: int
    reports: list[Report]
    seconds: float

    def names(self, outcome: str) -> set[str]:
        return {report.name for report in self.reports if report.outcome == outcome}

    def report(self, name: str) -> Report:
        return next(report for report in self.reports if report.name == name)

    def as_json(self) -> dict:
        counts = {outcome: len(self.names(outcome)) for outcome in OUTCOMES}
        return {
            "backend": self.backend,
            "world_size": self.world_size,
            **counts,
            "seconds": round(self.seconds, 1),
            "tests": [asdict(report) for report in self.reports],
        }


@dataclass
class Difference:
    """A test that one backend passes and the other does not, or that is known in vain."""

    name: str
    world_size: int
    gloo: str
    gradwire: str
    known: bool
    why: str

    def is_fault(self) -> bool:
        """gradwire's, or of the list of known differences; what gloo alone fails is gloo's."""
        return not self.known and self.gloo == "passed"


def differences(gloo: Run, gradwire: Run, known: dict[str, tuple[str, str]]) -> list[Difference]:
    found = []
    for name in sorted(report.name for report in gloo.reports):
        reports = {run.backend: run.report(name) for run in (gloo, gradwire)}
        passing = [backend for backend, report in reports.items() if report.outcome == "passed"]
        alone, reason = known.get(name, (None, None))
        if len(passing) == 1:
            why = reason if passing == [alone] else "".join(r.why for r in reports.values())
        elif len(passing) == 2 and alone:
            why = "both pass it: take it off the list of known differences"
        else:
            continue
        outcomes = [report.outcome for report in reports.values()]
        found.append(Difference(name, gloo.world_size, *outcomes, passing == [alone], why))
    return found


class Progress:
    """A bar on a terminal."""

    def __init__(self, what: str):
        self.what, self.begun, self.shown = what, time.monotonic(), sys.stderr.isatty()

    def show(self, done: int, total: int, failed: int):
        if not self.shown:
            return
        width = 30
        filled = width * done // total
        bar = "█" * filled + "░" * (width - filled)
        seconds = time.monotonic() - self.begun
        left = f", {seconds / done * (total - done):.0f} s left" if done else ""
        text = f"{bar} {self.what}: {done}/{total}, {failed} failed{left}"
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        print(f"\r\033[K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)

    def clear(self):
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def environment(debug_detail: bool) -> dict[str, str]:
    debug = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"} if debug_detail else {}
    return os.environ | {"GRADWIRE_CODEC": "none"} | debug


@contextlib.contextmanager
def started(command: list, debug_detail: bool):
    """A process whose lines are read; it is ended if it has not."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment(debug_detail)
    )
    try:
        yield process
        process.wait()
    finally:
        process.terminate()
        process.wait()


def run_suite(
    backend: str, world_size: int, tests: list[str], jobs: int, debug_detail: bool
) -> Run:
    command = [sys.executable, SUITE, "--backend", backend, "--world-size", str(world_size)]
    command += ["--jobs", str(jobs), *tests]
    progress = Progress(f"{backend}, {world_size} ranks")
    reports: list[Report] = []
    with started(command, debug_detail) as process:
        names = json.loads(process.stdout.readline() or "[]")
        progress.show(0, len(names), 0)
        for line in process.stdout:
            reports.append(Report(**json.loads(line)))
            failed = sum(report.outcome == "failed" for report in reports)
            progress.show(len(reports), len(names), failed)
    progress.clear()
    if process.returncode != 0 or len(reports) != len(names):
        raise Unavailable(f"torch's tests ended with exit code {process.returncode}")
    return Run(backend, world_size, reports, time.monotonic() - progress.begun)


def look_again(run: Run, names: list[str], debug_detail: bool):
    """Runs tests that failed AGAIN times, one at a time; a report becomes "passed" if all did."""
    for report in (run.report(name) for name in names):
        again = []
        while len(again) < AGAIN and {each.outcome for each in again} <= {"passed"}:
            again += run_suite(run.backend, run.world_size, [report.name], 1, debug_detail).reports
        if all(each.outcome == "passed" for each in again):
            report.outcome = "passed"
            report.why = f"failed once, then passed {AGAIN} times alone:\n{report.why}"


def run_pair(world_size: int, given: argparse.Namespace, known: dict) -> list[Run]:
    pair = [
        run_suite(backend, world_size, given.tests, given.jobs, given.debug_detail)
        for backend in given.backends
    ]
    if len(pair) == 2:
        doubtful = [each.name for each in differences(*pair, known) if not each.known]
        for run in pair:
            failed = [name for name in doubtful if name in run.names("failed")]
            look_again(run, failed, given.debug_detail)
    return pair


def table(runs: list[Run]) -> str:
    rows = [["ranks", "backend", "tests", *OUTCOMES, "seconds"]]
    for run in runs:
        counts = [len(run.reports), *(len(run.names(outcome)) for outcome in OUTCOMES)]
        rows.append([str(run.world_size), run.backend, *map(str, counts), f"{run.seconds:.0f}"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines)


def print_text(runs: list[Run], found: list[Difference]):
    print(table(runs))
    for run in runs:
        told = {difference.name for difference in found} | run.names("skipped")
        for report in run.reports:
            if report.why and report.name not in told:
                print(f"\n{report.name}, {run.world_size} ranks, {run.backend}: {report.outcome}")
                print(report.why.strip())
    for each in found:
        kind = "DIFFERENCE" if each.is_fault() else "known difference" if each.known else "gloo's"
        print(f"\n{kind}: {each.name}, {each.world_size} ranks: ", end="")
        print(f"gloo {each.gloo}, gradwire {each.gradwire}\n{each.why.strip()}")


def arguments() -> argparse.Namespace:
    heading, rest = __doc__.split("\n", 1)
    parser = argparse.ArgumentParser(
        description=heading, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--world-size", type=int, nargs="+", default=[2, 4], metavar="N", help="ranks (2 4)"
    )
    parser.add_argument("--backend", choices=["both", *BACKENDS], default="both")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--subset", choices=["all", "ci"], default="all", help="(all)")
    which.add_argument("--only", metavar="PATTERN", help="tests by name; * stands for anything")
    parser.add_argument(
        "--debug-detail", action="store_true", help="under TORCH_DISTRIBUTED_DEBUG=DETAIL"
    )
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="tests at a time (3)")
    parser.add_argument("--json", action="store_true", help="print JSON, every test's outcome")
    given = parser.parse_args()
    given.tests = [given.only] if given.only else CI if given.subset == "ci" else ["*"]
    given.backends = BACKENDS if given.backend == "both" else [given.backend]
    return given


def main() -> int:
    given = arguments()
    known = KNOWN_IN_DETAIL if given.debug_detail else KNOWN
    runs, found = [], []
    for world_size in given.world_size:
        pair = run_pair(world_size, given, known)
        runs += pair
        if len(pair) == 2:
            found += differences(*pair, known)
    if given.json:
        both = {"rows": [run.as_json() for run in runs], "differences": [asdict(d) for d in found]}
        print(json.dumps(both, indent=1))
    else:
        print_text(runs, found)
    return 1 if any(difference.is_fault() for difference in found) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as error:
        print(f"conformance: {error}; what it said stands above", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
