#!/usr/bin/env python3
"""Ranks that compute together while faults strike them.

    tests/soak/soak.py --faults 300              300 episodes, each with one fault
    tests/soak/soak.py --faults 20 --only kill,stop
    tests/soak/soak.py --seed 7 --only flip --episode 12     one episode again
    tests/soak/soak.py --faults 300 --json > soak.json

Each episode starts 2 to 9 ranks as processes, which make random collectives over shared memory,
tcp or both, and lets one fault strike at a random moment, a third of the time while they connect:

    kill        a rank gets SIGKILL
    stop        a rank gets SIGSTOP, and later SIGCONT or SIGKILL
    link        a host's link goes down, or its packets vanish
    reset       a connection between two ranks is reset
    flip        a bit is flipped on the way and the TCP checksum mended
    strangers   connect to whatever listens and talk garbage
    fork        a rank forks children, which sleep or exit; or it is killed and they live on
    lie         a rank sends messages that nobody waits for, or makes other calls than the others

Results must be right, and equal on all ranks. Every rank that lives must raise an error that names
a rank within the call's deadline and one second, must then be able to make a new communicator
with the other survivors, and leave nothing behind: no process, thread, descriptor, shared memory or
socket. Strangers and children must change nothing. The exit code is 0 when all of that held, 1 when
not, 2 when the soak cannot run here. It needs root, to make hosts (network namespaces) and a wire
between them.
"""

import argparse
import contextlib
import json
import os
import random
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from episode import FAULTS, LIES_ON_THE_WIRE, STORE_PORT, Episode, draw
from faults import Strangers, strike
from judge import GRACE_SECONDS, Course, RankReports, Verdict, judge
from network import Host, Unavailable, Wire, abstract_names, libc, own_shared_memory

HERE = Path(__file__).resolve().parent
# Until a rank counts as hanging, after the fault. It includes the deadline, the error and the new
# communicator, on a machine that has other work.
PATIENCE_SECONDS = 40.0
PR_SET_CHILD_SUBREAPER = 36


@contextlib.contextmanager
def interrupts_held():
    """They come when it ends: a process that has been started must be known before."""
    held = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(kind, lambda kind, _: held.append(kind)) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, handlers, strict=True):
            signal.signal(kind, handler)
        for kind in held:
            signal.raise_signal(kind)


class Ranks:
    """The processes of an episode, and what they report."""

    def __init__(self, episode: Episode, hosts: list[Host], folder: Path):
        address = hosts[episode.hosts[0]].address
        files = [f"file:{folder / name}" for name in ("store", "again")]
        store = f"tcp:{address}:{STORE_PORT}" if episode.tcp_store else files[0]
        description = json.dumps(episode.for_workers(store, files[1]))
        self.reports = [RankReports() for _ in episode.hosts]
        self.processes: list[subprocess.Popen] = []
        self._rests = [b""] * episode.size
        self._errors = []
        self._selector = selectors.DefaultSelector()
        try:
            with interrupts_held():
                for rank, host in enumerate(episode.hosts):
                    self._start(rank, hosts[host].namespace, description, folder)
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, namespace: int, description: str, folder: Path):
        self._errors.append(open(folder / f"stderr-{rank}", "w+"))
        process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", description, str(rank), str(namespace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors[rank],
            pass_fds=[namespace],
            start_new_session=True,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        )
        self.processes.append(process)
        self._selector.register(process.stdout, selectors.EVENT_READ, rank)

    def listen(self, seconds: float, until=lambda: False) -> bool:
        """Takes reports until the condition holds; false when that was not in time."""
        deadline = time.monotonic() + seconds
        while not until():
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.get_map():
                return False
            for key, _ in self._selector.select(left):
                self._hear(key.data)
        return True

    def _hear(self, rank: int):
        said = os.read(self.processes[rank].stdout.fileno(), 65536)
        if not said:
            self._selector.unregister(self.processes[rank].stdout)
            return
        *lines, self._rests[rank] = (self._rests[rank] + said).split(b"\n")
        self.reports[rank].events += [json.loads(line) for line in lines]

    def connect(self, staggered: list[float]):
        if not self.listen(60, lambda: all(r.all("ready") for r in self.reports)):
            raise RuntimeError(f"a rank did not start:\n{self.stderr(0)}")
        passed = 0.0
        for late, rank in sorted((late, rank) for rank, late in enumerate(staggered)):
            self.listen(late - passed)
            passed = late
            self.processes[rank].stdin.write(b"go\n")
            self.processes[rank].stdin.flush()

    def is_over(self, rank: int) -> bool:
        """It ended, in whatever way."""
        return self.reports[rank].ended or self.processes[rank].stdout not in [
            key.fileobj for key in self._selector.get_map().values()
        ]

    def stderr(self, rank: int) -> str:
        self._errors[rank].seek(0)
        return self._errors[rank].read()

    def end(self):
        """Those who did not end say where they are, then are killed."""
        stuck = [rank for rank in range(len(self.processes)) if not self.is_over(rank)]
        for rank in stuck:
            self.processes[rank].send_signal(signal.SIGUSR1)
        if stuck:
            self.listen(0.5)
        for rank, process in enumerate(self.processes):
            if not self.reports[rank].ended:
                process.kill()
                self._end_children(rank)
            code = process.wait(10)
            self.reports[rank].exit_code = None if rank in stuck else code
            self.reports[rank].stderr = self.stderr(rank)

    def _end_children(self, rank: int):
        """Of a rank that was killed: they are ours now."""
        for struck in self.reports[rank].all("struck"):
            with contextlib.suppress(ProcessLookupError, ChildProcessError, KeyError):
                os.kill(struck["child"], signal.SIGKILL)
                os.waitpid(struck["child"], 0)

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()
        for errors in self._errors:
            errors.close()
        self._selector.close()


def run(episode: Episode) -> Verdict:
    begun = time.monotonic()
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        hosts = []
        for number in range(max(episode.hosts) + 1):
            hosts.append(Host(number))
            closing.callback(hosts[-1].close)
        wire = Wire(hosts, random.Random(episode.name))
        closing.callback(wire.close)
        ranks = Ranks(episode, hosts, folder)
        closing.callback(ranks.close)
        course = play(episode, ranks, hosts, wire)
        ranks.end()
        course.suspects = suspects(episode, wire)
        verdict = judge(episode, ranks.reports, course)
        if episode.must_fail and episode.fault in ("flip", "reset") and wire.struck is None:
            verdict.other.append("the fault did not strike: nothing passed on the wire")
        verdict.other += leftovers(hosts)
    verdict.seconds = round(time.monotonic() - begun, 1)
    return verdict


def play(episode: Episode, ranks: Ranks, hosts: list[Host], wire: Wire) -> Course:
    """Lets ranks connect and compute, and the fault strike."""
    course = Course()
    at_once = episode.connecting and episode.fault in ("reset", "flip")
    with contextlib.ExitStack() as closing:
        strangers = []
        if episode.fault == "strangers":
            for number, host in enumerate(hosts):
                strangers.append(Strangers(host, f"{episode.name}/{number}"))
                closing.callback(strangers[-1].close)
        if at_once:
            strike(episode, ranks.processes, hosts, wire)
        ranks.connect(episode.staggered)
        if not episode.connecting:
            victim = ranks.reports[episode.victim]
            ranks.listen(60, lambda: all(r.all("connected") for r in ranks.reports))
            ranks.listen(60, lambda: len(victim.all("done")) >= episode.moment or victim.ended)
        ranks.listen(episode.delay)
        committed = ranks.reports[episode.victim]
        if episode.manner:
            ranks.listen(60, lambda: committed.all("struck") or committed.ended)
        course.struck = time.monotonic()
        if not at_once:
            strike(episode, ranks.processes, hosts, wire)
        silent = [episode.victim] if episode.falls_silent else []
        waiting = [rank for rank in range(episode.size) if rank not in silent]
        ranks.listen(PATIENCE_SECONDS, lambda: all(map(ranks.is_over, waiting)))
        if episode.fault == "stop" and episode.variant % 2:
            ranks.processes[episode.victim].send_signal(signal.SIGCONT)
            course.resumed = time.monotonic()
            ranks.listen(PATIENCE_SECONDS, lambda: ranks.is_over(episode.victim))
    if episode.fault == "lie" and committed.all("struck"):
        course.struck = committed.all("struck")[0]["at"]
    course.visits = sum(each.visits for each in strangers)
    return course


def suspects(episode: Episode, wire: Wire) -> set[int]:
    """The ranks that an error may blame; empty: anybody."""
    if episode.falls_silent and not episode.connecting:
        return {episode.victim}
    if episode.manner in LIES_ON_THE_WIRE:
        return {episode.victim}
    if wire.struck and not episode.connecting:
        return {rank for rank in range(episode.size) if episode.hosts[rank] in wire.struck}
    return set()


def leftovers(hosts: list[Host]) -> list[str]:
    found = [f"/dev/shm/{name} is left" for name in os.listdir("/dev/shm")]
    for host in hosts:
        found += [f"socket {name[1:]} is left" for name in host.inside(abstract_names)]
    with contextlib.suppress(ChildProcessError):
        pid, _ = os.waitpid(-1, os.WNOHANG)
        found.append(f"a process is left (process {pid} or others)")
    return found


# ---------------------------------------------------------------------------------------------
# Telling


class Progress:
    """A bar on a terminal."""

    def __init__(self, total: int):
        self.total, self.begun, self.shown = total, time.monotonic(), sys.stderr.isatty()

    def show(self, done: int, episode: Episode | None, violations: int):
        if not self.shown:
            return
        width = 30
        filled = width * done // self.total
        bar = "█" * filled + "░" * (width - filled)
        seconds = time.monotonic() - self.begun
        left = f", {seconds / done * (self.total - done):.0f} s left" if done else ""
        what = episode.describe() if episode else ""
        text = f"{bar} {done}/{self.total}{left}, {violations} violations  {what}"
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
        print(f"\r\033[K{text[: columns - 1]}", end="", file=sys.stderr, flush=True)

    def clear(self):
        if self.shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def table(verdicts: list[Verdict]) -> str:
    heads = ["fault", "episodes", "errors", "in time", "slowest", "wrong", "hangs", "other"]
    rows = [heads]
    for fault in [*FAULTS, "all"]:
        chosen = [v for v in verdicts if fault in (v.episode.fault, "all")]
        if not chosen:
            continue
        over = [error["over"] for v in chosen for error in v.errors]
        counts = [len(chosen), len(over), sum(o <= GRACE_SECONDS for o in over)]
        slowest = f"{max(over):+.2f} s" if over else "-"
        bad = [
            sum(map(len, each))
            for each in zip(*((v.wrong, v.hangs, v.other) for v in chosen), strict=True)
        ]
        rows.append([fault, *map(str, counts), slowest, *map(str, bad)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(lines) + "\n(slowest: of all errors, against its deadline)"


def complain(verdict: Verdict):
    episode = verdict.episode
    print(f"episode {episode.number}, {episode.describe()}", file=sys.stderr)
    for violation in verdict.violations:
        print(f"  {violation}", file=sys.stderr)
    again = f"--seed {episode.seed} --only {episode.fault} --episode {episode.number}"
    print(f"  again: {HERE / 'soak.py'} {again}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    heading, rest = __doc__.split("\n", 1)
    parser = argparse.ArgumentParser(
        description=heading, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=300, metavar="N", help="how many (300)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is random (1)")
    parser.add_argument("--only", metavar="FAULT,…", help=f"of {', '.join(FAULTS)}")
    parser.add_argument("--episode", type=int, metavar="I", help="only this one")
    parser.add_argument("--json", action="store_true", help="all episodes, instead of the table")
    given = parser.parse_args()
    given.kinds = given.only.split(",") if given.only else list(FAULTS)
    for kind in given.kinds:
        if kind not in FAULTS:
            parser.error(f"there is no fault '{kind}'; there are: {', '.join(FAULTS)}")
    if given.faults < 1:
        parser.error("--faults: take 1 or more")
    return given


def main() -> int:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # what ranks leave behind comes to us
    try:
        own_shared_memory()
        Host(0).close()
    except (Unavailable, subprocess.CalledProcessError, FileNotFoundError) as error:
        print(
            f"soak: the faults {', '.join(given.kinds)} cannot be made here ({error}): their ranks "
            "run on hosts of their own (network namespaces). Run as root (sudo), or in a container "
            "with CAP_NET_ADMIN, CAP_SYS_ADMIN and /dev/net/tun; ip comes with iproute2.",
            file=sys.stderr,
        )
        return 2
    numbers = range(given.faults) if given.episode is None else [given.episode]
    verdicts: list[Verdict] = []
    progress = Progress(len(numbers))
    for done, number in enumerate(numbers):
        episode = draw(given.seed, number, given.kinds[number % len(given.kinds)])
        progress.show(done, episode, sum(len(v.violations) for v in verdicts))
        verdicts.append(run(episode))
        if verdicts[-1].violations:
            progress.clear()
            complain(verdicts[-1])
    progress.clear()
    if given.json:
        print(json.dumps([verdict.as_json() for verdict in verdicts], indent=1))
    else:
        print(table(verdicts))
    return 1 if any(verdict.violations for verdict in verdicts) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
