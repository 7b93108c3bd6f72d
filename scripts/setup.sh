#!/usr/bin/env bash
# Installs what building and testing MoEx needs, from Debian 12's own packages (names mapped for Ubuntu 24.04).
#   usage: scripts/setup.sh [--yes] [--for run|test] [--check]
#     --yes     do not ask (root is not asked either)
#     --for X   run: what scripts/run.sh needs; test: the test tools as well [test]
#     --check   only say what is missing; exit 1 if anything is
#   example: scripts/setup.sh --for run
# Shows what it would install and what apt would remove before it does either. A second run finds nothing to do in a second.
set -euo pipefail
yes=0 check=0 purpose=test
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) yes=1 ;;
    --check) check=1 ;;
    --for) purpose=${2:?run or test}; shift ;;
    -h|--help) sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "setup.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done

boost=1.81
if [ -r /etc/os-release ]; then
  # shellcheck disable=SC1091
  case "$(. /etc/os-release; echo "${ID:-}-${VERSION_ID:-}")" in
    debian-12) ;;
    ubuntu-24.04) boost=1.83 ;;
    *) echo "setup.sh: this system is not Debian 12 or Ubuntu 24.04; its package names may differ" >&2 ;;
  esac
fi
command -v apt-get >/dev/null || { echo "setup.sh: apt-get is not here; install by hand what README.md lists under Requirements" >&2; exit 1; }

packages="g++ cmake ninja-build pkg-config ccache
  libboost$boost-dev libboost-url$boost-dev libssl-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libspdlog-dev libfmt-dev
  prometheus-cpp-dev libsqlite3-dev liblz4-dev libhwy-dev libpcre2-dev libutf8proc-dev libqrcodegencpp-dev
  libvulkan-dev mesa-vulkan-drivers spirv-tools emscripten"
[ "$purpose" = test ] && packages="$packages libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev clang-14 libclang-rt-14-dev python3"
# Node and a browser may come from elsewhere: only what is not found is installed.
command -v node >/dev/null || packages="$packages nodejs"
command -v npm >/dev/null || packages="$packages npm"
if [ -z "${MOEX_CHROMIUM:-}" ] && ! command -v chromium-headless-shell chromium google-chrome >/dev/null 2>&1; then
  packages="$packages $([ "$boost" = 1.81 ] && echo chromium-headless-shell || true)"
fi

missing=()
for package in $packages; do
  case "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" in
    installed) ;;
    *) missing+=("$package") ;;
  esac
done
if [ ${#missing[@]} -eq 0 ]; then
  [ "$check" = 1 ] && echo "setup.sh: nothing is missing"
  exit 0
fi
echo "setup.sh: missing: ${missing[*]}"
[ "$check" = 1 ] && exit 1

sudo=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "setup.sh: not root and no sudo; run as root: apt-get install --no-install-recommends ${missing[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
plan=$(apt-get install --simulate --no-install-recommends "${missing[@]}" 2>&1) || {
  echo "setup.sh: package lists are old or absent: updating them"
  "${sudo[@]}" apt-get update -q
  plan=$(apt-get install --simulate --no-install-recommends "${missing[@]}" 2>&1) || { echo "$plan" >&2; echo "setup.sh: apt cannot install them (above)" >&2; exit 1; }
}
removals=$(printf '%s\n' "$plan" | sed -n 's/^Remv \([^ ]*\).*/\1/p' | tr '\n' ' ')
echo "setup.sh: apt installs $(printf '%s\n' "$plan" | grep -c '^Inst ') packages and removes: ${removals:-none}"
if [ "$yes" = 0 ] && [ "$(id -u)" != 0 ]; then
  read -r -p "Go on? [y/N] " answer
  [ "$answer" = y ] || [ "$answer" = Y ] || { echo "setup.sh: nothing was changed"; exit 1; }
fi
install=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
"${install[@]}" || { "${sudo[@]}" apt-get update -q && "${install[@]}"; }
