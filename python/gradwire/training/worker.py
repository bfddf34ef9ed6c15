"""One rank of `gradwire bench train`: trains a model by one method and says what a step took.

    python -m gradwire.training.worker --store FILE --model vgg --method gloo --steps 50

Started once per rank, with RANK and WORLD_SIZE in the environment. Rank 0 prints one JSON object
per line: after each step

    {"step": 1, "loss": 2.3, "step_seconds": 0.5, "exposed_seconds": 0.4, "wire_bytes": 44000000}

about itself, and at the end one with what all ranks measured, means over ranks:

    parameters        of the model
    replicas_equal    whether all ranks' parameters are, to the bit
    losses            of every step
    seconds           of every step
    final_loss        the mean over the last fifth of the steps
    held_out_loss     with --evaluate: of the trained model, on what it has not seen
    held_out_accuracy
    step_seconds      the median
    compute_seconds   forward, backward and optimizer alone, medians: every PROBE_EVERY steps all
                      ranks first compute the gradients of their batch under `no_sync`, and throw
                      them away
    exposed_seconds   the rest of a step: communication that computing did not hide
    cpu_seconds       what a rank's threads worked in a step, the median: when ranks share cores, as
                      test hosts do, work of one is a delay of another
    wire_bytes_per_step   what a rank sent in a step, the median
    wire_bytes_from   who counted: `eth0` (the kernel, at the interface of this rank alone),
                      `lo` (the same, divided by the ranks that share it) or `gradwire` (the
                      library, without headers of the network)
    workload          when gradients are ready (docs/workload.md), by the probes
    choice            what the method auto has chosen, and why
    plan              how gradients travelled (docs/plan.md), of methods of gradwire

The first steps, at most WARMUP_STEPS, count for losses alone. The method auto first trains until it
has chosen, and any method of gradwire for --settle steps, which count for nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F

from . import data, methods, models, recipes, wire
from .workload import Workload

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h

WARMUP_STEPS = 5
PROBE_EVERY = 4
MOST_STEPS_UNTIL_CHOICE = 1000


@dataclass
class Measured:
    """What one rank saw: one entry per step, or per probe."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    wire_bytes: list[float] = field(default_factory=list)
    optimizer_seconds: list[float] = field(default_factory=list)
    gradient_seconds: list[float] = field(default_factory=list)  # of probes

    def compute_seconds(self) -> float:
        return statistics.median(self.gradient_seconds) + statistics.median(self.optimizer_seconds)

    def without_first(self, steps: int) -> Measured:
        """Probes are after them anyway."""
        return Measured(
            self.losses,
            self.seconds[steps:],
            self.cpu_seconds[steps:],
            self.wire_bytes[steps:],
            self.optimizer_seconds[steps:],
            self.gradient_seconds,
        )


class Trainer:
    """A model, its optimizer and its share of the data, on one rank of the default group."""

    def __init__(self, options: argparse.Namespace) -> None:
        recipe = recipes.RECIPES[options.model]
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._interface = options.interface
        self._method = options.method
        self._settle = options.settle
        torch.manual_seed(options.seed)
        model = recipe.model().train()
        self.parameters = models.parameters_of(model)
        self._recipe, self._data = recipe, options.data
        self._replica = methods.distribute(model, options.method, options.seed)
        rate = recipe.learning_rates[options.optimizer]
        self._optimizer = recipes.OPTIMIZERS[options.optimizer](model, rate)
        if methods.is_residual(options.method):
            methods.add_residual(
                self._replica, self._optimizer, options.method, options.seed, options.link
            )
        self._schedule = recipes.schedule(self._optimizer, options.steps)
        self._batches = self._load(recipe, options)
        self._workload = Workload(model)
        self.measured = Measured()

    def _load(self, recipe: recipes.Recipe, options: argparse.Namespace) -> Iterator[data.Batch]:
        """Rank 0 first, so that what it keeps in the folder is there for the others."""
        if self._rank != 0:
            dist.barrier()
        size = (options.batch or recipe.batch) * self._ranks
        batches = recipe.source.batches(options.seed, size, options.data)
        first = next(batches)
        if self._rank == 0:
            dist.barrier()
        whole = itertools.chain([first], batches)
        return (tuple(part.chunk(self._ranks)[self._rank] for part in batch) for batch in whole)

    def step(self, probe: bool) -> None:
        """One update of the weights; with `probe`, after timing its gradients alone."""
        inputs, targets = next(self._batches)
        if probe:
            self._probe(inputs, targets)
        self._update(inputs, targets)
        self._schedule.step()

    def _update(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        sent = self._sent_bytes()
        start, cpu_start = time.perf_counter(), time.process_time()
        loss = F.cross_entropy(self._replica(inputs), targets)
        loss.backward()
        reduced = time.perf_counter()
        self._optimizer.step()
        self._optimizer.zero_grad()
        end, cpu_end = time.perf_counter(), time.process_time()
        self.measured.losses.append(loss.item())
        self.measured.seconds.append(end - start)
        self.measured.cpu_seconds.append(cpu_end - cpu_start)
        self.measured.optimizer_seconds.append(end - reduced)
        self.measured.wire_bytes.append(self._sent_bytes() - sent)

    def choose(self) -> None:
        """Trains until it has found out how its gradients should travel. Other codecs train as many
        steps as `settle` says, so that gradients are alike."""
        if not methods.is_gradwire(self._method):
            return
        for step in range(MOST_STEPS_UNTIL_CHOICE):
            if step >= self._settle and self.choice().get("choice", "none to wait for"):
                break
            self._update(*next(self._batches))
        self.measured = Measured()

    def evaluate(self) -> dict[str, float]:
        """Each rank takes its share of what is held out."""
        model = self._replica.module.eval()
        sums = torch.zeros(3, dtype=torch.float64)
        batches = self._recipe.source.held_out(self._data)
        with torch.no_grad():
            for inputs, targets in itertools.islice(batches, self._rank, None, self._ranks):
                outputs = model(inputs)
                loss = F.cross_entropy(outputs, targets, reduction="sum").item()
                right = (outputs.argmax(dim=1) == targets).sum().item()
                sums += torch.tensor([loss, right, len(targets)], dtype=torch.float64)
        dist.all_reduce(sums)
        loss, right, count = sums.tolist()
        return {"held_out_loss": loss / count, "held_out_accuracy": right / count}

    def replicas_equal(self) -> bool:
        own = hashlib.sha256()
        for parameter in self._replica.parameters():
            own.update(parameter.detach().numpy())
        of_ranks = [b""] * self._ranks
        dist.all_gather_object(of_ranks, own.digest())
        return len(set(of_ranks)) == 1

    def _probe(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        dist.barrier()
        start = time.perf_counter()
        with self._replica.no_sync():
            loss = F.cross_entropy(self._replica(inputs), targets)
            with self._workload.backward():
                loss.backward()
        self.measured.gradient_seconds.append(time.perf_counter() - start)
        self._optimizer.zero_grad()
        dist.barrier()

    def workload(self, name: str, compute_seconds: float) -> dict:
        """All ranks call it together."""
        mine = self._workload.ready_seconds(), statistics.median(self._workload.backward_seconds)
        of_ranks = [mine] * self._ranks
        dist.all_gather_object(of_ranks, mine)
        backward = statistics.fmean(seconds for _, seconds in of_ranks)
        return self._workload.as_json(name, max(0.0, compute_seconds - backward), of_ranks)

    def choice(self) -> dict:
        """In words, of the method auto."""
        if self._method != "auto":
            return {}
        import gradwire.torch

        return {"choice": gradwire.torch.stats(self._replica).choice}

    def plan(self) -> dict:
        """How gradients travelled, if gradwire carried them."""
        if not methods.is_gradwire(self._method):
            return {}
        import gradwire.torch

        return {"plan": json.loads(gradwire.torch.plan(self._replica).json())}

    @property
    def wire_bytes_from(self) -> str:
        """On one host gradwire sends through memory, which no interface sees."""
        shared = self._interface == "lo" and methods.is_gradwire(self._method)
        return "gradwire" if shared else self._interface

    def _sent_bytes(self) -> float:
        source = self.wire_bytes_from
        if source == "gradwire":
            import gradwire.torch

            return gradwire.torch.stats(self._replica).sent_bytes
        return wire.sent_bytes(source) / (self._ranks if source == "lo" else 1)


def say(line: dict) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


def mean_over_ranks(measured: Measured) -> Measured:
    """Entry by entry."""
    of_ranks: list[dict] = [{}] * dist.get_world_size()
    dist.all_gather_object(of_ranks, asdict(measured))
    columns = {key: zip(*(one[key] for one in of_ranks), strict=True) for key in of_ranks[0]}
    return Measured(**{key: list(map(statistics.fmean, rows)) for key, rows in columns.items()})


def say_step(step: int, measured: Measured) -> None:
    compute = measured.compute_seconds() if measured.gradient_seconds else None
    say(
        {
            "step": step,
            "loss": measured.losses[-1],
            "step_seconds": measured.seconds[-1],
            "exposed_seconds": None if compute is None else measured.seconds[-1] - compute,
            "wire_bytes": measured.wire_bytes[-1],
        }
    )


def train(options: argparse.Namespace) -> None:
    trainer = Trainer(options)
    trainer.choose()
    untimed = min(WARMUP_STEPS, options.steps // 2)
    for step in range(options.steps):
        trainer.step(probe=step >= untimed and (step - untimed) % PROBE_EVERY == 0)
        say_step(step + 1, trainer.measured)
    everywhere = mean_over_ranks(trainer.measured)
    timed = everywhere.without_first(untimed)
    step_seconds = statistics.median(timed.seconds)
    say(
        {
            "parameters": trainer.parameters,
            "replicas_equal": trainer.replicas_equal(),
            **(trainer.evaluate() if options.evaluate else {}),
            "losses": everywhere.losses,
            "seconds": everywhere.seconds,
            "final_loss": statistics.fmean(everywhere.losses[-max(1, options.steps // 5) :]),
            "step_seconds": step_seconds,
            "compute_seconds": timed.compute_seconds(),
            "cpu_seconds": statistics.median(timed.cpu_seconds),
            "exposed_seconds": step_seconds - timed.compute_seconds(),
            "wire_bytes_per_step": statistics.median(timed.wire_bytes),
            "wire_bytes_from": trainer.wire_bytes_from,
            **trainer.choice(),
            "workload": trainer.workload(options.model, timed.compute_seconds()),
            **trainer.plan(),
        }
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gradwire.training.worker", description=__doc__.split("\n")[0]
    )
    add = parser.add_argument
    add("--store", type=Path, required=True,
        help="a file that is not there yet, by which the ranks meet")  # fmt: skip
    add("--model", choices=recipes.RECIPES, required=True)
    add(
        "--method", required=True, help="gloo, fp16, bf16, powersgd, residual or a codec[+feedback]"
    )
    add("--optimizer", choices=recipes.OPTIMIZERS, default="adamw")
    add("--steps", type=int, default=50)
    add("--settle", type=int, default=0,
        help="steps before those, which count for nothing, of methods of gradwire")  # fmt: skip
    add("--seed", type=int, default=0)
    add("--batch", type=int, default=0, help="images, or rows of text, per rank; 0: the model's")
    add("--evaluate", action="store_true", help="and test the model on what it has not seen")
    add("--link", help="how fast it is, such as 1gbit, if the method residual is to know")
    add("--interface", default="lo", help="which gloo uses and whose bytes count")
    add("--data", type=Path, default=Path(tempfile.gettempdir()), metavar="FOLDER",
        help="where data stays that takes long to prepare (default: %(default)s)")  # fmt: skip
    return parser.parse_args()


def keep_freed_memory() -> None:
    """What a step frees the next one takes again, as with the allocators that torch recommends for
    CPUs. glibc would give large pieces back to the kernel, which clears every page anew."""
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def main() -> int:
    options = parse_options()
    keep_freed_memory()
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(options.data / "torchinductor"))
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    store = dist.FileStore(str(options.store), ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    try:
        train(options)
    except data.DataError as error:
        print(f"gradwire.training: {error}", file=sys.stderr)
        return 1
    # The model is part of a cycle and holds the group, whose threads must end before Python does.
    gc.collect()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
