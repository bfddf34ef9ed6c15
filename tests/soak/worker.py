"""One rank of the soak: runs collectives until something happens, and reports it.

    worker.py EPISODE RANK      EPISODE is JSON; started by soak.py

Reports are lines of JSON on stdout. It waits for a line on stdin before it connects.
"""

import ctypes
import faulthandler
import itertools
import json
import os
import re
import resource
import signal
import sys
import time
from collections import deque
from pathlib import Path

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
CLOSING_SECONDS = 1.0  # a broken communicator has nothing to wait for


def report(event: str, **what):
    os.write(1, (json.dumps({"event": event, "at": time.monotonic()} | what) + "\n").encode())


def settle(namespace: int):
    """In its host's network; ends with the driver, and says where it hangs when asked."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if libc.setns(namespace, CLONE_NEWNET) != 0:
        sys.exit(f"setns: {os.strerror(ctypes.get_errno())}")
    os.close(namespace)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)


def holdings() -> dict[str, int]:
    """What a communicator takes and has to give back."""
    maps = Path("/proc/self/maps").read_text()
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shared memories": len(re.findall("memfd:gradwire", maps)),
    }


def peak_megabytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class Rank:
    def __init__(self, episode: dict, rank: int):
        self.episode, self.rank = episode, rank
        fork = manner_of(episode, "fork", rank)
        self.forks = Forks(fork, report) if fork else None
        self.lie = manner_of(episode, "lie", rank)

    def run(self):
        first, again = self.episode["runs"]
        failed = self._fails(first)
        self.lie = None
        if failed and self.rank in again["ranks"] and self._fails(again):
            report("not again")
        if self.forks:
            self.forks.end()

    def _fails(self, run: dict) -> bool:
        rank, size = run["ranks"].index(self.rank), len(run["ranks"])
        timeout = run["connect_timeout"]
        options = {"secret": self.episode["secret"], "transport": self.episode["transport"]}
        begun = time.monotonic()
        if self.forks and self.episode["connecting"]:
            self.forks.while_connecting(self.episode["mischief"]["delay"])
        try:
            ranks = gradwire.connect(rank, size, run["store"], timeout=timeout, **options)
        except gradwire.Error as error:
            report_error("connect", error, begun, timeout)
            return True
        report("connected")
        failed = self._compute(ranks, run)
        closing = time.monotonic()
        del ranks
        seconds = time.monotonic() - closing
        if failed and seconds > CLOSING_SECONDS:
            report("slow to close", seconds=seconds)
        return failed

    def _compute(self, ranks, run: dict) -> bool:
        """So many calls, or until one fails, some at once. Whether one failed."""
        stream = Stream(
            run["name"], ranks.rank, ranks.size, run["hierarchical"], self.episode["max_count"]
        )  # fmt: skip
        numbers = itertools.count() if run["calls"] is None else iter(range(run["calls"]))
        under_way = deque()
        while True:
            for number in itertools.islice(numbers, self.episode["at_once"] - len(under_way)):
                call = self._perhaps_lie(stream.call(number), number)
                arrays = stream.inputs(call)
                begun = time.monotonic()
                work = stream.begin(ranks, call, arrays, run["timeout"])
                under_way.append((call, arrays, begun, work))
                self._commit(ranks, number)
            if not under_way:
                return False
            call, arrays, begun, work = under_way.popleft()
            try:
                work.wait()
            except gradwire.Error as error:
                report_error(call.kind, error, begun, run["timeout"])
                self._fail_others(ranks, under_way, run["timeout"])
                return True
            mistake = stream.mistake(call, arrays)
            if mistake:
                report("wrong", text=mistake)
            stream.take(call, arrays)
            digest = stream.digest(call, arrays)
            report("done", run=run["name"], number=call.number, hash=digest)

    def _perhaps_lie(self, call, number: int):
        moment = self.episode["mischief"]["moment"]
        if not self.lie or number < moment:
            return call
        if self.lie in LIES_ON_THE_WIRE:
            manner, self.lie = self.lie, None
            report("struck")
            lie_on_the_wire(manner, number)
        elif can_be_lied_about(call):
            call, self.lie = other_than(call, self.lie), None
            report("struck")
        return call

    def _commit(self, ranks, number: int):
        """What a rank may do while operations run."""
        if self.forks and number == self.episode["mischief"]["moment"]:
            if not self.episode["connecting"]:
                self.forks.while_computing(ranks)
        if number % 5 == 4:
            try:
                ranks.load_residuals(ranks.save_residuals())
            except gradwire.Error as error:  # not while something is under way that they belong to
                if error.code != "invalid_argument":
                    report("wrong", text=f"residuals: {error}")

    def _fail_others(self, ranks, under_way, timeout: float):
        """After the first error, all that is under way and all that comes later fails at once."""
        begun = time.monotonic()
        works = [work for *_, work in under_way] + [ranks.barrier(timeout=timeout)]
        failures = 0
        for work in works:
            try:
                work.wait()
            except gradwire.Error:
                failures += 1
        if failures == 0 or time.monotonic() - begun > 1:
            report("not broken", seconds=time.monotonic() - begun, failures=failures)


def report_error(where: str, error, begun: float, timeout: float):
    raised = time.monotonic()
    report(
        "error", where=where, code=error.code, text=str(error), begun=begun, timeout=timeout,
        over=raised - begun - timeout,
    )  # fmt: skip


if __name__ == "__main__":
    episode = json.loads(sys.argv[1])
    rank = int(sys.argv[2])
    settle(int(sys.argv[3]))
    import gradwire
    from collectives import Stream
    from episode import LIES_ON_THE_WIRE
    from mischief import Forks, can_be_lied_about, lie_on_the_wire, manner_of, other_than

    before, peak_before = holdings(), peak_megabytes()
    report("ready")
    sys.stdin.readline()
    Rank(episode, rank).run()
    after = holdings()
    left = {what: after[what] - before[what] for what in after}
    report("end", left=left, grown=peak_megabytes() - peak_before)
