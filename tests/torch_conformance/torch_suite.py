#!/usr/bin/env python3
"""Runs torch's own tests of a backend, each in processes of its own. conformance.py calls it.

    tests/torch_conformance/torch_suite.py --backend gloo --world-size 2 'test_all_reduce*'

Prints JSON, a line each: the names of the tests; then, as each ends, its name, its outcome
("passed", "failed" or "skipped"), why, and its seconds.

torch starts Python anew for each rank of each test, and importing torch then takes most of the
time. Here ranks are forked from a process that has imported it and has computed nothing.
"""

import argparse
import atexit
import ctypes
import fnmatch
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

MODULE = "torch.testing._internal.distributed.distributed_test"
STATED = 'BACKEND = os.environ["BACKEND"]'
# Tests of groups make one of ranks 1 and 2. torch runs them from 8 ranks on.
RANKS_FOR_GROUPS = 4
# Until ranks that wait for each other in a file barrier give up; torch's 10 s are few for a busy
# machine.
BARRIER_SECONDS = 100
# Of what a failed test wrote, the end.
OUTPUT_CHARACTERS = 4000


class AlsoGloo(str):
    """A backend's name that equals "gloo", too: tests that torch runs for gloo alone run for it."""

    def __eq__(self, other):
        return str.__eq__(self, other) or str.__eq__(other, "gloo")

    def __ne__(self, other):
        return not self == other

    __hash__ = "gloo".__hash__


def load_tests(backend: str, world_size: int):
    """torch's module of tests. It reads the environment when it is imported, and ranks do later."""
    os.environ |= {"BACKEND": backend, "WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    os.environ["INIT_METHOD"] = "file://"  # Only its kind; every test gets a file.
    if backend == "gradwire":
        import gradwire.torch  # noqa: F401  (registers the backend)
    from torch.testing._internal import common_distributed

    common_distributed.DistTestCases.backend_feature["plugin"].add(backend)
    if world_size >= RANKS_FOR_GROUPS:
        common_distributed.skip_if_small_worldsize = lambda test: test
    spec = importlib.util.find_spec(MODULE)
    source = Path(spec.origin).read_text()
    if source.count(STATED) != 1:
        raise SystemExit(f"torch_suite: {spec.origin} has no line «{STATED}»: mend load_tests()")
    module = importlib.util.module_from_spec(spec)
    module.AlsoGloo = AlsoGloo
    sys.modules[MODULE] = module
    source = source.replace(STATED, f"BACKEND = AlsoGloo({backend!r})")
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    module.Barrier.sync.__func__.__defaults__ = (None, BARRIER_SECONDS)
    return module


def suite_of(module) -> type[unittest.TestCase]:
    from torch.testing._internal import common_distributed

    class TorchSuite(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *arguments, **options):
            module.INIT_METHOD = os.environ["INIT_METHOD"]
            # A copy of the test's folder, which is not the rank's to remove.
            common_distributed.tmp_dir._finalizer.detach()
            code = 0
            try:
                super()._run(*arguments, **options)
            except SystemExit as end:
                code = end.code
            # multiprocessing ends a forked process at once. Python's own way, which takes a second,
            # is left out; what a backend has registered, and its C++, take place.
            atexit._run_exitfuncs()
            ctypes.PyDLL(None).exit(code)

        def _check_return_codes(self, test, seconds):
            super()._check_return_codes(test, seconds)
            codes = {process.exitcode for process in self.processes}
            if len(codes) > 1 and test not in self.skip_return_code_checks:
                self.fail(f"the ranks' exit codes differ: {[p.exitcode for p in self.processes]}")

    return TorchSuite


def outcome_of(case: unittest.TestCase) -> tuple[str, str]:
    """Runs a test here. What came of it, and why."""
    result = unittest.TestResult()
    case.run(result)
    if troubles := result.failures + result.errors:
        return "failed", troubles[0][1]
    if result.skipped:
        return "skipped", result.skipped[0][1]
    return "passed", ""


class RunningTest:
    """A test in a process that leads a group, to which its ranks belong."""

    def __init__(self, suite: type[unittest.TestCase], name: str):
        self.name = name
        self._began = time.monotonic()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self.pid = os.fork()
        if self.pid == 0:
            self._run(suite)

    def _run(self, suite: type[unittest.TestCase]):
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        tempfile.tempdir = str(self._folder)
        output = os.open(self._folder / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        (self._folder / "outcome").write_text(json.dumps(outcome_of(suite(self.name))))
        os._exit(0)

    def kill(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def report(self) -> dict:
        """When its process has ended: its outcome. Ends what it has left."""
        self.kill()
        try:
            outcome, why = json.loads((self._folder / "outcome").read_text())
        except FileNotFoundError:
            outcome, why = "failed", "the process that ran the test died"
        if outcome == "failed":
            output = (self._folder / "output").read_text(errors="replace")
            why += output[-OUTPUT_CHARACTERS:]
        shutil.rmtree(self._folder, ignore_errors=True)
        seconds = round(time.monotonic() - self._began, 2)
        return {"name": self.name, "outcome": outcome, "why": why, "seconds": seconds}


def run(suite: type[unittest.TestCase], names: list[str], jobs: int):
    """Runs the tests, so many at a time, and yields their reports as they end."""
    waiting = list(reversed(names))
    running: dict[int, RunningTest] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                test = RunningTest(suite, waiting.pop())
                running[test.pid] = test
            pid, _ = os.wait()
            yield running.pop(pid).report()
    finally:
        for test in running.values():
            test.kill()


def names_of(suite: type[unittest.TestCase], patterns: list[str]) -> list[str]:
    known = unittest.TestLoader().getTestCaseNames(suite)
    chosen = {pattern: fnmatch.filter(known, pattern) for pattern in patterns}
    if missing := [pattern for pattern, names in chosen.items() if not names]:
        raise SystemExit(f"torch_suite: torch has no test {', '.join(missing)}")
    return sorted({name for names in chosen.values() for name in names})


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=["gloo", "gradwire"], required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time (2)")
    parser.add_argument("patterns", nargs="+", metavar="TEST", help="a name, or a pattern with *")
    return parser.parse_args()


def main():
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    suite = suite_of(load_tests(given.backend, given.world_size))
    names = names_of(suite, given.patterns)
    print(json.dumps(names), flush=True)
    for report in run(suite, names, given.jobs):
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
