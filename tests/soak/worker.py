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


class Rank:
    def __init__(self, episode: dict, rank: int):
        self.episode, self.rank = episode, rank

    def run(self):
        first, again = self.episode["runs"]
        if self._fails(first) and self.rank in again["ranks"] and self._fails(again):
            report("not again")

    def _fails(self, run: dict) -> bool:
        rank, size = run["ranks"].index(self.rank), len(run["ranks"])
        timeout = run["connect_timeout"]
        options = {"secret": self.episode["secret"], "transport": self.episode["transport"]}
        begun = time.monotonic()
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
        stream = Stream(run["name"], ranks.rank, ranks.size, run["hierarchical"])
        numbers = itertools.count() if run["calls"] is None else iter(range(run["calls"]))
        under_way = deque()
        while True:
            for number in itertools.islice(numbers, self.episode["at_once"] - len(under_way)):
                call = stream.call(number)
                arrays = stream.inputs(call)
                begun = time.monotonic()
                work = stream.begin(ranks, call, arrays, run["timeout"])
                under_way.append((call, arrays, begun, work))
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
            digest = stream.digest(call, arrays)
            report("done", run=run["name"], number=call.number, hash=digest)

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

    before = holdings()
    report("ready")
    sys.stdin.readline()
    Rank(episode, rank).run()
    after = holdings()
    report("end", left={what: after[what] - before[what] for what in after})
