#!/usr/bin/env python3
"""Fails when a file includes what stands above or beside its folder.

The folders of the project are layers (docs: src/README.md). A file may include its own folder and
those named for it below, nothing else of the project. Run directly or by pytest; needs no packages.
"""

import re
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Folder: the folders it may include besides itself and the public headers. Lowest layer first.
_BASE = ["base"]
_TENSOR = [*_BASE, "tensor"]
_DOING = [*_TENSOR, "trace"]  # codec, collective and net … rendezvous never include one another
_DECIDING = [*_DOING, "codec", "collective", "net", "transport", "rendezvous"]
_ENGINE = [*_DECIDING, "feedback", "adapt", "plan"]
_TOP = [*_ENGINE, "calibrate", "engine"]  # what is outside src/

MAY_INCLUDE = {
    "include/gradwire": [],
    "src/base": [],
    "src/tensor": _BASE,
    "src/trace": _TENSOR,
    "src/codec": _DOING,
    "src/collective": _DOING,
    "src/net": _BASE,
    "src/transport": [*_DOING, "net"],
    "src/rendezvous": [*_DOING, "net", "transport"],
    "src/feedback": _DECIDING,
    "src/adapt": _DECIDING,
    "src/plan": _DECIDING,
    "src/calibrate": [*_DECIDING, "plan"],
    "src/engine": _ENGINE,
    "bindings": _TOP,
    "tools": _TOP,
    "bench": _TOP,
    "fuzz": _TOP,
    "tests": _TOP,
    "examples": [],  # an example shows what a user can do, so it has the public headers only
}

# Names that tell nothing about what is inside; style asks for a better one.
VAGUE_STEMS = {"utils", "util", "helpers", "helper", "common", "manager", "misc"}

# Files that every folder may have.
REPEATED_NAMES = {"CMakeLists.txt", "README.md", "__init__.py"}

SOURCE_SUFFIXES = {".h", ".hpp", ".c", ".cc", ".cpp"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)


def folder_of(path: str) -> str | None:
    """The entry of MAY_INCLUDE that a file of the project belongs to."""
    return next((f for f in MAY_INCLUDE if path.startswith(f + "/")), None)


def layer_of(include: str) -> str | None:
    """The folder of src/ that an include names, "gradwire" for a public header, None for others.

    Includes are written relative to src/ or include/. A bare name is a file of the same folder.
    """
    first = include.split("/")[0]
    if first == "gradwire":
        return "gradwire"
    if f"src/{first}" in MAY_INCLUDE and "/" in include:
        return first
    return ".." if ".." in Path(include).parts else None


def sources(root: Path) -> list[Path]:
    tops = {folder.split("/")[0] for folder in MAY_INCLUDE}
    found = [p for top in sorted(tops) for p in sorted((root / top).rglob("*"))]
    return [p for p in found if p.suffix in SOURCE_SUFFIXES]


def layering_violations(root: Path) -> list[str]:
    violations = []
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        folder = folder_of(name)
        if folder is None:
            violations.append(f"{name}: its folder has no layer; add it to {Path(__file__).name}")
            continue
        allowed = {"gradwire", folder.removeprefix("src/"), *MAY_INCLUDE[folder]}
        for match in INCLUDE.finditer(path.read_text(encoding="utf-8")):
            include = match[1] or match[2]
            layer = layer_of(include)
            if layer == "..":
                violations.append(f"{name}: {include!r} climbs; write it relative to src/")
            elif layer is not None and layer not in allowed:
                violations.append(f"{name}: {folder} may not include {include!r}")
    return violations


def naming_violations(root: Path) -> list[str]:
    """File names are unique, so that one name means one file wherever it is said."""
    violations, seen = [], {}
    for path in sources(root):
        name = path.relative_to(root).as_posix()
        if path.stem in VAGUE_STEMS:
            violations.append(f"{name}: the name says nothing; name the thing")
        if path.name in REPEATED_NAMES:
            continue
        # A public header and the private one of the same thing may share a name: they are told
        # apart by how they are included, <gradwire/x.h> and "folder/x.h".
        key = (path.name, name.startswith("include/"))
        if key in seen:
            violations.append(f"{name}: {seen[key]} has the same name")
        seen.setdefault(key, name)
    return violations


class Layering(unittest.TestCase):
    def test_folders_include_only_what_stands_below(self):
        self.assertEqual([], layering_violations(ROOT))

    def test_file_names_are_unique_and_say_something(self):
        self.assertEqual([], naming_violations(ROOT))

    def test_the_project_is_found(self):
        self.assertTrue(sources(ROOT), "no sources seen: the checks above checked nothing")


class SelfCheck(unittest.TestCase):
    """Seeds one violation at a time in an empty tree: each must be found."""

    def check(self, checker, path: str, text: str) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / path
            file.parent.mkdir(parents=True)
            file.write_text(text, encoding="utf-8")
            return checker(Path(folder))

    def test_seeded_include_is_found(self):
        for path, include in [
            ("src/base/a.cc", '"tensor/dtype.h"'),
            ("src/tensor/a.h", '"codec/frame.h"'),
            ("src/codec/a.cc", '"transport/tcp.h"'),
            ("src/codec/kernels/a.cc", '"collective/ring.h"'),
            ("src/collective/a.cc", '"codec/frame.h"'),
            ("src/net/a.cc", '"transport/transport.h"'),
            ("src/transport/a.cc", '"rendezvous/store.h"'),
            ("src/plan/a.cc", '"engine/executor.h"'),
            ("src/feedback/a.cc", "<engine/engine.h>"),
            ("include/gradwire/a.h", '"base/bytes.h"'),
            ("examples/a.cc", '"codec/frame.h"'),
            ("src/codec/a.cc", '"../base/bytes.h"'),
        ]:
            with self.subTest(path=path, include=include):
                found = self.check(layering_violations, path, f"#pragma once\n#include {include}\n")
                self.assertEqual(1, len(found), found)

    def test_allowed_include_is_not_found(self):
        for path, include in [
            ("src/codec/a.cc", '"codec/frame.h"'),
            ("src/codec/kernels/a.cc", '"base/bytes.h"'),
            ("src/rendezvous/a.cc", '"transport/router.h"'),
            ("src/engine/a.cc", '"plan/plan.h"'),
            ("src/base/a.cc", '"gradwire/error.h"'),
            ("src/base/a.cc", "<vector>"),
            ("tools/gradwire/a.cc", '"codec/frame.h"'),
            ("src/base/a.cc", '"xxhash.h"'),
        ]:
            with self.subTest(path=path, include=include):
                self.assertEqual([], self.check(layering_violations, path, f"#include {include}\n"))

    def test_folder_without_a_layer_is_found(self):
        self.assertEqual(1, len(self.check(layering_violations, "src/extra/a.cc", "")))

    def test_vague_name_is_found(self):
        self.assertEqual(1, len(self.check(naming_violations, "src/base/utils.h", "")))

    def test_repeated_name_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in ["src/base/a.cc", "src/tensor/a.cc"]:
                (Path(folder) / path).parent.mkdir(parents=True)
                (Path(folder) / path).touch()
            self.assertEqual(1, len(naming_violations(Path(folder))))


if __name__ == "__main__":
    unittest.main()
