#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a trace costs a step of training: DistributedDataParallel on two ranks of this host.

Each job trains three equal models, one step of each in turn: one without a trace, one with, and
again one without, whose difference from the first is what such a measurement cannot tell apart.
On a machine that does other things, too, the processors' time tells more than the clock's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 2
WARM_UP = 10  # rounds that do not count
CLOCKS = {"time": time.perf_counter, "CPU": time.process_time}
PLAIN, TRACED, AGAIN = MODELS = ("without", "with", "without again")
LAYERS, WIDTH, BATCH = 6, 1024, 16


def train(rounds: int, folder: Path) -> None:
    """One rank of a job. The first writes the seconds of each model's steps by each clock."""
    import gradwire.torch
    import torch
    from torch import distributed, nn

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    inputs = torch.randn(BATCH, WIDTH)

    def stepper(traced: bool):
        layers = [module for _ in range(LAYERS) for module in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        group = distributed.new_group()  # each has a communicator of its own
        model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)

        def step() -> tuple[float, ...]:
            begin = [clock() for clock in CLOCKS.values()]
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            return tuple(clock() - b for clock, b in zip(CLOCKS.values(), begin, strict=True))

        os.environ["GRADWIRE_TRACE"] = str(folder / "trace") if traced else ""
        gradwire.torch.compress(model, "grid:step=0.5")
        step()  # connects
        return step

    steps = {name: stepper(name == TRACED) for name in MODELS}
    seconds = {name: [] for name in MODELS}
    orders = itertools.cycle(itertools.permutations(MODELS))  # none always follows the same
    for order in itertools.islice(orders, rounds + WARM_UP):
        for name in order:
            distributed.barrier()
            seconds[name].append(steps[name]())
    if distributed.get_rank() == 0:
        counted = {name: zip(*values[WARM_UP:], strict=True) for name, values in seconds.items()}
        by_clock = {clock: {name: next(counted[name]) for name in MODELS} for clock in CLOCKS}
        (folder / "seconds.json").write_text(json.dumps(by_clock))
    distributed.destroy_process_group()


def run_job(rounds: int) -> dict[str, dict[str, list[float]]]:
    with tempfile.TemporaryDirectory() as folder:
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        ours = [__file__, "--rounds", str(rounds), "--worker", folder]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, *launch, *ours], env=environment, check=True)
        if not list(Path(folder, "trace").glob("rank*.gwtrace")):
            sys.exit("trace_cost: no trace was written")
        return json.loads(Path(folder, "seconds.json").read_text())


def difference(seconds: dict[str, list[float]], name: str) -> float:
    """Of a model's step from the plain one's of the same round, in percent of a step's time."""
    pairs = zip(seconds[name], seconds[PLAIN], strict=True)
    return 100 * statistics.median(a - b for a, b in pairs) / statistics.median(seconds[PLAIN])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=7, help="one after the other (default: 7)")
    parser.add_argument("--rounds", type=int, default=200, help="of each job (default: 200)")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return train(options.rounds, options.worker)
    found: dict[str, dict[str, list[float]]] = {clock: {TRACED: [], AGAIN: []} for clock in CLOCKS}
    for number in range(1, options.jobs + 1):
        job = run_job(options.rounds)
        for clock, seconds in job.items():
            for name, values in found[clock].items():
                values.append(difference(seconds, name))
            print(
                f"job {number}, {clock:>4}: {1e3 * statistics.median(seconds[PLAIN]):.2f} ms per "
                f"step; {TRACED} {found[clock][TRACED][-1]:+.2f} %, "
                f"{AGAIN} {found[clock][AGAIN][-1]:+.2f} %"
            )
    for clock, by_name in found.items():
        for name, values in by_name.items():
            print(
                f"{clock:>4} {name}: {statistics.median(values):+.2f} % of a step, the median of "
                f"{len(values)} jobs, from {min(values):+.2f} to {max(values):+.2f} %"
            )


if __name__ == "__main__":
    main()
