#!/usr/bin/env python3
"""The automatic plan beside gloo and beside each codec alone, on many models and links, as a table.

    bench/auto_beside_others.py --seeds 3 --output build/auto.json

Every cell is `gradwire bench train` with alternating runs of all methods; what counts is how much
longer a step by the automatic plan takes than the best of the others. Needs root for test hosts.
"""

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
METHODS = ["auto", "gloo", "uniform:bits=4,bucket=128", "grid:step=0.5"]
MODELS = ["vgg", "transformer", "words", "resnet"]
LINKS = ["memory", "none", "10gbit", "1gbit", "100mbit"]
SETTLE = 120
"""Steps before those that count, of auto, which needs fewer for its choice, and of codecs alike:
how many bytes a codec sends changes while a model learns."""
SLOW_STEPS = 10
"""Of trainings whose steps take seconds without compression."""


def train(model: str, link: str, options: argparse.Namespace) -> dict:
    place = ["--ranks", "2"] if link == "memory" else ["--hosts", "2", "--link", link]
    steps = SLOW_STEPS if link == "100mbit" else options.steps
    command = [options.program, "bench", "train", "--model", model, *place]
    command += ["--methods", ",".join(METHODS), "--steps", steps, "--seeds", options.seeds]
    command += ["--settle", SETTLE, "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def row_of(model: str, link: str, report: dict) -> dict:
    rows = {row["method"]: row for row in report["rows"]}
    auto = rows.pop("auto")
    best = min(rows.values(), key=lambda row: row["step_seconds"])
    return {
        "model": model,
        "link": link,
        "auto_seconds": auto["step_seconds"],
        "auto_seconds_min": auto["step_seconds_min"],
        "auto_seconds_max": auto["step_seconds_max"],
        **{f"{method}_seconds": row["step_seconds"] for method, row in rows.items()},
        "best": best["method"],
        "of_best": auto["step_seconds"] / best["step_seconds"],
        "choices": [run["choice"] for run in auto["runs"]],
    }


def line_of(row: dict) -> str:
    times = [row["auto_seconds"], *(row[f"{method}_seconds"] for method in METHODS[1:])]
    spread = f"{1e3 * row['auto_seconds_min']:.0f}–{1e3 * row['auto_seconds_max']:.0f}"
    chosen = sorted({choice.split(":")[0] for choice in row["choices"]})
    cells = [row["model"], row["link"], *(f"{1e3 * each:.1f}" for each in times), spread]
    return "| " + " | ".join([*cells, f"{row['of_best']:.2f}", "; ".join(chosen)]) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "gradwire")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--links", nargs="+", default=LINKS, choices=LINKS)
    parser.add_argument("--seeds", type=int, default=3, help="runs of each method (default: 3)")
    parser.add_argument("--steps", type=int, default=40, help="of each run (default: 40)")
    parser.add_argument("--output", type=Path, help="write the figures as JSON, too")
    options = parser.parse_args()
    names = ["auto", "gloo", "uniform", "grid"]
    titles = ["model", "link", *(f"{name}, ms" for name in names), "auto from–to", "of the best"]
    print("| " + " | ".join([*titles, "chosen"]) + " |")
    print("|" + "---|" * (len(titles) + 1))
    rows = []
    for model, link in itertools.product(options.models, options.links):
        rows.append(row_of(model, link, train(model, link, options)))
        print(line_of(rows[-1]), flush=True)
        if options.output:
            options.output.write_text(json.dumps(rows, indent=2))
    worst = max(rows, key=lambda row: row["of_best"])
    print(f"\nAt worst {worst['of_best']:.3f} x the best ({worst['model']}, {worst['link']}).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
