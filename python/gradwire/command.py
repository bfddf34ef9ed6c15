"""The command `gradwire` as pip installs it: `run`, which is Python's.

All the others measure and show things, and are compiled with the source tree: a training job needs
none of them, and they would take pip a third of its time.
"""

from __future__ import annotations

import argparse
import os
import sys

from . import __version__

_TREE = "bench calibrate hosts inspect plan schedule trace".split()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="gradwire",
        usage="gradwire run [options] train.py [its arguments]",
        description="Runs a PyTorch script as torchrun does, with its gradients compressed; "
        "gradwire run --help has the options.",
        epilog=f"{', '.join(_TREE)}: in the source tree, as build/gradwire, after make build.",
    )
    parser.add_argument("--version", action="version", version=f"gradwire {__version__}")
    parser.add_argument("command", choices=["run", *_TREE], help=argparse.SUPPRESS)
    command = parser.parse_args(sys.argv[1:2] or ["--help"]).command
    if command != "run":
        parser.error(f"{command} is in the source tree: make build, then build/gradwire {command}")
    # Becomes it, so that signals and the exit code are its own.
    arguments = [sys.executable, "-m", "gradwire.torch.run", *sys.argv[2:]]
    os.execv(sys.executable, arguments)
