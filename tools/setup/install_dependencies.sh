#!/usr/bin/env bash
# Makes sure that the Debian packages of the named groups are there.
#
#   install_dependencies.sh GROUP...      groups: build, fuzz, lint, demo
#
# As root it installs what is missing. Otherwise it prints the command that would, and fails.
# docs/dependencies.md says what each package is for.
set -euo pipefail

packages_of() {
  case $1 in
    build) echo g++ cmake ninja-build ccache pkg-config python3-dev python3-venv \
                libhwy-dev libxxhash-dev libfmt-dev libssl-dev libcli11-dev nlohmann-json3-dev \
                libgtest-dev librapidcheck-dev libhtscodecs-dev libprotozero-dev iproute2 \
                libopenmpi-dev openmpi-bin ;;
    fuzz)  echo clang-14 libclang-rt-14-dev ;;
    lint)  echo clang-format-14 clang-tidy-14 ;;
    demo)  echo dataset-fashion-mnist ;;
    *)     echo "install_dependencies.sh: no group '$1'; there are build, fuzz, lint, demo" >&2
           return 2 ;;
  esac
}

wanted=()
for group in "$@"; do
  list=$(packages_of "$group")
  read -ra names <<<"$list"
  wanted+=("${names[@]}")
done

if ! command -v dpkg-query >/dev/null; then
  echo "This is not Debian. Make sure the equivalents of these packages are installed:" >&2
  echo "  ${wanted[*]}" >&2
  exit 0
fi

missing=()
for name in "${wanted[@]}"; do
  state=$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null || true)
  [ "$state" = installed ] || missing+=("$name")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" != 0 ]; then
  echo "Debian packages are missing. Install them with:" >&2
  echo "  sudo apt-get install --no-install-recommends ${missing[*]}" >&2
  exit 1
fi

echo "Installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The package lists of a long-lived machine are usually good enough, and fetching them takes a while;
# they are fetched only when the installation fails without.
install() { apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
install || { apt-get update -qq >"$log" 2>&1 && install; } || { tail -n 20 "$log" >&2; exit 1; }
