"""Writes gradwire.egg-info, by which the source tree passes for an installed package.

    write_metadata.py VERSION        called by CMake

Whoever has this folder on the path finds the entry points there, and torch finds gradwire by them.
All but the version comes from pyproject.toml.
"""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent


def entry_points(project: dict) -> str:
    lines = []
    for group, points in project["entry-points"].items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in points.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]
    folder = HERE / f"{project['name']}.egg-info"
    folder.mkdir(exist_ok=True)
    description = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {sys.argv[1]}\n"
    (folder / "PKG-INFO").write_text(description)
    (folder / "entry_points.txt").write_text(entry_points(project))


if __name__ == "__main__":
    main()
