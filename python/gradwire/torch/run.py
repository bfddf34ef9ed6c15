"""`gradwire run`: torchrun, with gradients compressed in a script that says nothing of it.

python -m gradwire.torch.run --nproc-per-node 4 train.py --epochs 3

Takes torchrun's flags and a few of its own, which reach the workers through their environment
(`gradwire.torch.settings` reads it); the rest is torchrun itself, in this process.
"""

from __future__ import annotations

import argparse
import os
from importlib.metadata import entry_points
from pathlib import Path

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import record

import gradwire

from . import settings
from .version_check import INSTALL

_EXAMPLES = """\
Every flag of torchrun is taken, and means what it means there. Those of gradwire stand before the
script, too; on several hosts give the same to each.

Examples:
  gradwire run --nproc-per-node 4 train.py --epochs 3
  gradwire run --codec uniform:bits=4,bucket=128 --nproc-per-node 4 train.py
  gradwire run --codec sign+feedback --exact '*embed*' --standalone -m trainer
  gradwire run --residual 0.001 --warmup 500 --clip 1.0 --nproc-per-node 4 train.py
  gradwire run --trace run/ --nproc-per-node 4 train.py && gradwire trace run/ -o job.pftrace
  gradwire run --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 train.py
"""


def _codec(spec: str) -> str:
    try:
        settings.checked_choice(spec)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return spec


def _density(text: str) -> str:
    _codec(f"topk:density={text}")
    return text


def _parser() -> argparse.ArgumentParser:
    """torchrun's, with our options beside its own."""
    parser = torchrun.get_args_parser()
    parser.prog = "gradwire run"
    parser.usage = "gradwire run [options] train.py [its arguments]"
    parser.description = "Runs a PyTorch script as torchrun does, with its gradients compressed."
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    ours = parser.add_argument_group("gradwire")
    ours.add_argument(
        "--codec",
        type=_codec,
        default=os.environ.get("GRADWIRE_CODEC"),
        metavar="SPEC",
        help="How gradients travel: auto (the default), by which the training finds out what makes "
        "its steps shortest; adapt, by which grid is as fine as each layer needs it; or a codec "
        "such as grid:step=0.5, fp16, or sign+feedback, which adds to each gradient what "
        "compression took from the one before.",
    )
    ours.add_argument(
        "--exact",
        action="append",
        metavar="PATTERN",
        help="Parameters whose gradients travel exactly, by name; repeat for several.",
    )
    ours.add_argument(
        "--plan",
        default=os.environ.get("GRADWIRE_PLAN"),
        metavar="FILE",
        help="A plan, which says how every layer travels; docs/plan.md tells how to write one.",
    )
    ours.add_argument(
        "--save-plan",
        type=os.path.abspath,
        default=settings.saved_plan_path() or None,
        metavar="FILE",
        help="Write how gradients travelled, also while plans were tried, for --plan: a run with "
        "that file gives the same bits.",
    )
    ours.add_argument(
        "--residual",
        type=_density,
        metavar="DENSITY",
        help="Send this share of each gradient, such as 0.001, and the rest later: for very slow "
        "links and scripts that train by SGD. The codec takes small layers.",
    )
    ours.add_argument(
        "--warmup",
        type=int,
        metavar="STEPS",
        help="With --residual: first so many steps with whole gradients.",
    )
    ours.add_argument(
        "--clip",
        type=float,
        metavar="NORM",
        help="With --residual: clip gradients to this norm, in place of the script, which clips to "
        "the same or not at all.",
    )
    ours.add_argument(
        "--trace",
        type=os.path.abspath,  # ranks may have other working directories
        default=settings.trace() or None,
        metavar="DIR",
        help="Leave a trace of every rank in this folder; gradwire trace makes one file of them.",
    )
    ours.add_argument(
        "--no-summary", action="store_true", help="Do not say at the end what was sent."
    )
    return parser


def _environment(options: argparse.Namespace) -> dict[str, str]:
    """What tells the workers; what is not asked for stays as the caller has set it."""
    told = {"GRADWIRE": "1", "GRADWIRE_SUMMARY": "0" if options.no_summary else "1"}
    if options.codec is not None:
        told["GRADWIRE_CODEC"] = options.codec
    if options.exact:
        told["GRADWIRE_EXACT"] = ",".join(options.exact)
    if options.plan:
        told["GRADWIRE_PLAN"] = os.path.abspath(options.plan)
    if options.save_plan is not None:
        told["GRADWIRE_SAVE_PLAN"] = options.save_plan
    if options.residual is not None:
        told["GRADWIRE_RESIDUAL"] = options.residual
    if options.warmup is not None:
        told["GRADWIRE_WARMUP"] = str(options.warmup)
    if options.clip is not None:
        told["GRADWIRE_CLIP"] = str(options.clip)
    if options.trace is not None:
        told["GRADWIRE_TRACE"] = options.trace
    return told


def _obstacle(options: argparse.Namespace) -> str | None:
    """Why workers would not compress, and what to do."""
    beside = Path() if options.module else Path(options.training_script).parent
    for name in ("gradwire.py", "gradwire/__init__.py"):
        if (stranger := beside / name).exists() and not stranger.samefile(gradwire.__file__):
            return (
                f"{stranger} hides the package gradwire from the script, as Python looks beside it "
                "first: give it another name"
            )
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        return (
            "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading gradwire in the workers; "
            "unset it, or call gradwire.torch.compress(model) in the script and use torchrun"
        )
    if not entry_points(group="torch.backends", name="gradwire"):
        return (
            "gradwire can be imported but is not installed, so torch does not load it in the "
            f"workers; in its source tree run make build, or {INSTALL}"
        )
    try:
        settings.from_environment()
        settings.check_trace()
        settings.check_saved_plan()
        for_residual = {"--warmup": settings.warmup(), "--clip": settings.clip()}
        if settings.residual_density() is None:
            for flag, value in for_residual.items():
                if value:
                    return f"{flag} is for --residual; leave it out"
    except ValueError as error:
        return str(error)
    return None


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    os.environ.update(_environment(options))
    if (obstacle := _obstacle(options)) is not None:
        parser.error(obstacle)
    record(torchrun.run)(options)  # as torchrun's own main does


if __name__ == "__main__":
    main()
