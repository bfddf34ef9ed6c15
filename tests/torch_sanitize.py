#!/usr/bin/env python3
"""Runs tests of the PyTorch layer with its modules under a sanitizer.

    torch_sanitize.py asan [pytest's arguments]       as make torch-sanitize does, after building
    torch_sanitize.py tsan -k feedback

Python and PyTorch are as they are: the sanitizer's run-time library is loaded before them, in the
workers that tests start, too, and sees our code, what it frees and what it locks. Reports go to
stderr and to build/torch-asan/reports; one of them makes it fail, also when its process had ended
well.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = ["ddp", "fsdp", "fsdp_feedback", "residual", "discarded"]
RUNTIMES = {"asan": ["libasan.so", "libubsan.so"], "tsan": ["libtsan.so"]}
# Python and torch keep what they allocate until the process ends; that is no leak of ours.
OPTIONS = {
    "asan": {"ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=1"},
    # Of code that is not compiled for it TSan knows locks and threads, but no atomic operations, as
    # those by which torch counts references: what such code frees is no race of ours.
    "tsan": {"TSAN_OPTIONS": "ignore_noninstrumented_modules=1"},
}


def package(build: Path) -> Path:
    """The package with these modules: of everything else there is one, in the tree."""
    source, folder = ROOT / "python" / "gradwire", build / "package" / "gradwire"
    shutil.rmtree(folder.parent, ignore_errors=True)
    shutil.copytree(
        source, folder, copy_function=os.symlink, ignore=shutil.ignore_patterns("*.so", "_built_*")
    )
    for module in (build / "bindings" / "python").glob("_gradwire*.so"):
        os.symlink(module, folder / module.name)
    native = build / "bindings" / "torch"
    for file in [*native.glob("_native*.so"), native / "_built_for.py"]:
        os.symlink(file, folder / "torch" / file.name)
    return folder.parent


def runtime(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True)
    return found.stdout.strip()


def main() -> int:
    kind, *arguments = sys.argv[1:]
    build = ROOT / "build" / f"torch-{kind}"
    reports = build / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    (name, options), *_ = OPTIONS[kind].items()
    environment = os.environ | {
        "LD_PRELOAD": ":".join(map(runtime, RUNTIMES[kind])),
        "PYTHONPATH": str(package(build)),
        "OMP_NUM_THREADS": "1",  # its barriers are invisible
        name: f"{options}:log_path={reports / 'report'}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports / 'report'}",
    }
    tests = [str(ROOT / "python" / "tests" / f"test_torch_{each}.py") for each in TESTS]
    command = [sys.executable, "-m", "pytest", "-q", *tests, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment)
    found = sorted(reports.iterdir())
    for report in found:
        print(report.read_text(), file=sys.stderr)
    print(f"{len(found)} reports of {kind}", file=sys.stderr)
    return 1 if found else done.returncode


if __name__ == "__main__":
    sys.exit(main())
