"""Whether what ranks reported is what an episode promises."""

import re
from dataclasses import asdict, dataclass, field

from episode import Episode

GROWTH_MEGABYTES = 128  # of a rank that is lied to; its tensors and buffers take a tenth
GRACE_SECONDS = 3.0  # a busy machine is late too; the table shows how late
COMPUTES_ON_SECONDS = 20.0  # a rank that still gets results so long after a fault does not hang


@dataclass
class RankReports:
    """What one rank said, in order."""

    events: list[dict] = field(default_factory=list)
    exit_code: int | None = None
    stderr: str = ""

    def all(self, event: str) -> list[dict]:
        return [each for each in self.events if each["event"] == event]

    @property
    def error(self) -> dict | None:
        return next(iter(self.all("error")), None)

    def computes_on(self, moment: float) -> bool:
        return any(done["at"] > moment for done in self.all("done"))

    @property
    def ended(self) -> bool:
        return bool(self.all("end"))


@dataclass
class Verdict:
    episode: Episode
    hangs: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    errors: list[dict] = field(default_factory=list)
    """What ranks raised: rank, seconds over the deadline, text."""
    seconds: float = 0.0

    @property
    def violations(self) -> list[str]:
        return self.hangs + self.wrong + self.other

    def as_json(self) -> dict:
        return asdict(self) | {"what": self.episode.describe()}


@dataclass
class Course:
    """What the driver did."""

    struck: float = 0.0
    resumed: float | None = None
    """When a stopped rank went on."""
    visits: int = 0
    """Of strangers."""
    suspects: set[int] = field(default_factory=set)
    """The ranks that may be blamed; empty: anybody."""


def judge(episode: Episode, ranks: list[RankReports], course: Course) -> Verdict:
    verdict = Verdict(episode)
    dead = episode.falls_silent and course.resumed is None
    living = [rank for rank in range(episode.size) if not (dead and rank == episode.victim)]
    failed = [rank for rank in living if ranks[rank].error]
    if failed and len(failed) < len(living):
        fine = [rank for rank in living if rank not in failed]
        verdict.other.append(f"ranks {failed} failed, but not ranks {fine}")
    if failed and episode.harmless:
        verdict.other.append(
            f"{episode.fault} disturbed rank {failed[0]}: {ranks[failed[0]].error}"
        )
    if episode.fault == "strangers" and course.visits == 0:
        verdict.other.append("the fault did not strike: strangers found nobody who listens")
    for rank in living:
        _judge_rank(verdict, rank, ranks[rank], course)
    _compare_results(verdict, ranks)
    return verdict


def _judge_rank(verdict: Verdict, rank: int, reports: RankReports, course: Course):
    def object_to(what: str):
        verdict.other.append(f"rank {rank} {what}")

    verdict.wrong += [f"rank {rank}: {each['text']}" for each in reports.all("wrong")]
    for event in ("slow to close", "not again", "not broken"):
        for each in reports.all(event):
            object_to(f"was {event}: {each}")
    if not reports.ended:
        if reports.exit_code not in (None, 0):
            object_to(f"ended with {reports.exit_code}: {reports.stderr}")
        elif reports.error is None and reports.computes_on(course.struck + COMPUTES_ON_SECONDS):
            object_to("saw no error and computes on")
        elif reports.error:
            verdict.hangs.append(f"rank {rank} after its error:\n{reports.stderr}")
        else:
            verdict.hangs.append(f"rank {rank}:\n{reports.stderr}")
    for end in reports.all("end"):
        left = {what: count for what, count in end["left"].items() if count != 0}
        if left:
            object_to(f"has more than before it connected: {left}")
        if verdict.episode.fault == "lie" and end["grown"] > GROWTH_MEGABYTES:
            object_to(f"took {end['grown']} MB of messages that nobody waits for")
    if reports.error:
        _judge_error(verdict, rank, reports.error, course, object_to)
    elif verdict.episode.must_fail and reports.ended:
        object_to("saw no error")


def _judge_error(verdict: Verdict, rank: int, error: dict, course: Course, object_to):
    over = error["over"]
    if rank == verdict.episode.victim and course.resumed:  # it could not be in time
        over = min(over, error["at"] - course.resumed)
    verdict.errors.append(
        {"rank": rank, "where": error["where"], "over": round(over, 3), "text": error["text"]}
    )
    if over > GRACE_SECONDS:
        object_to(f"got its error {over:.2f} s after the deadline: {error['text']}")
    if error["at"] < course.struck and not verdict.episode.connecting:
        object_to(f"failed before the fault: {error['text']}")
    if verdict.episode.shows_at_once and error["code"] != "peer_failed":
        object_to(f"waited for what it could have seen at once: {error['text']}")
    accusation = re.sub(r" on rank \d+", "", error["text"])  # where it was noticed
    named = {int(number) for number in re.findall(r"rank (\d+)", accusation)}
    if not named:
        object_to(f"got an error that names nobody: {error['text']}")
    elif course.resumed and rank == verdict.episode.victim:
        pass  # it was not there when the others found out
    elif course.suspects and not named <= course.suspects:
        object_to(f"blames another than {sorted(course.suspects)}: {error['text']}")


def _compare_results(verdict: Verdict, ranks: list[RankReports]):
    known: dict[tuple[str, int], str] = {}
    for rank, reports in enumerate(ranks):
        for done in reports.all("done"):
            if known.setdefault((done["run"], done["number"]), done["hash"]) != done["hash"]:
                verdict.wrong.append(f"rank {rank} has another result in call {done['number']}")
