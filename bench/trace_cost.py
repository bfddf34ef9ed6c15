#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a trace costs a step of training: DistributedDataParallel on two ranks of this host.

Each job trains three equal models, one step of each in turn: one without a trace, one with, and
again one without, whose difference from the first is what such a measurement cannot tell apart.
"""

from __future__ import annotations

import argparse
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
PLAIN, TRACED, AGAIN = MODELS = ("without", "with", "without again")
LAYERS, WIDTH, BATCH = 6, 1024, 16


def train(rounds: int, folder: Path) -> None:
    """One rank of a job. The first writes the seconds of each model's steps, in order."""
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

        def step() -> float:
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            return time.perf_counter() - begin

        os.environ["GRADWIRE_TRACE"] = str(folder / "trace") if traced else ""
        gradwire.torch.compress(model)
        step()  # connects
        return step

    steps = {name: stepper(name == TRACED) for name in MODELS}
    seconds = {name: [] for name in MODELS}
    for i in range(rounds + WARM_UP):
        first = i % len(MODELS)  # none of them always follows the same
        for name in MODELS[first:] + MODELS[:first]:
            distributed.barrier()
            seconds[name].append(steps[name]())
    if distributed.get_rank() == 0:
        kept = {name: values[WARM_UP:] for name, values in seconds.items()}
        (folder / "seconds.json").write_text(json.dumps(kept))
    distributed.destroy_process_group()


def run_job(rounds: int) -> dict[str, list[float]]:
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
    jobs = []
    print(f"{'job':>3} {'median step without':>20} {'with':>10} {'with':>8} {'without again':>14}")
    for number in range(1, options.jobs + 1):
        seconds = run_job(options.rounds)
        plain, traced = (1e3 * statistics.median(seconds[name]) for name in (PLAIN, TRACED))
        jobs.append((difference(seconds, TRACED), difference(seconds, AGAIN)))
        cost, noise = jobs[-1]
        print(f"{number:>3} {plain:>17.2f} ms {traced:>7.2f} ms {cost:>+6.2f} % {noise:>+12.2f} %")
    for what, values in zip(("with", "without again"), zip(*jobs, strict=True), strict=True):
        print(
            f"{what}: median of {len(jobs)} jobs {statistics.median(values):+.2f} % of a step, "
            f"from {min(values):+.2f} to {max(values):+.2f} %"
        )


if __name__ == "__main__":
    main()
