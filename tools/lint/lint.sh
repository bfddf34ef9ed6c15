#!/usr/bin/env bash
# Checks the C++ sources that git knows: clang-format, then clang-tidy with the list in .clang-tidy.
#
#   tools/lint/lint.sh          check; needs a configured build/dev for clang-tidy
#   tools/lint/lint.sh --fix    format in place instead
#
# Version 14 of both, whatever else is installed: other versions format differently.
set -euo pipefail
cd "$(dirname "$0")/../.."

mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.c' | sort)

if [ "${1:-}" = --fix ]; then
  clang-format-14 -i "${files[@]}"
  exit
fi

clang-format-14 --dry-run -Werror "${files[@]}"

# clang-tidy needs to know how a file is compiled, so it sees what the preset "dev" compiles.
mapfile -t compiled < <(python3 - <<'PYTHON'
import json, os
top = os.getcwd() + "/"
for entry in json.load(open("build/dev/compile_commands.json")):
    name = entry["file"]
    if name.startswith(top) and not name.startswith(top + "build/"):
        print(name.removeprefix(top))
PYTHON
)
printf '%s\n' "${compiled[@]}" | sort -u |
  xargs -P "$(nproc)" -n 4 clang-tidy-14 -p build/dev --quiet \
    2> >(grep -v 'warnings generated\|^Suppressed\|^Use -header-filter' >&2 || true)
