#!/usr/bin/env bash
# Installs what building, serving and testing MoEx need, from Debian 12's own packages (names mapped for Ubuntu 24.04).
#   usage: scripts/setup.sh [--yes] [--for PURPOSE[,PURPOSE...]] [--check | --list]
#     --yes     do not ask (root is not asked either)
#     --for X   run: the hub and its pages; worker: also moex-worker (Vulkan); tab: also a headless browser here;
#               package: worker and dpkg's tools; test: all but dpkg's and the test tools;
#               proxies, browsers: what scripts/test.sh --proxies and --browsers try besides;
#               lint: clang-tidy and clang-format                                                         [test]
#     --check   only say what is missing; exit 1 if anything is
#     --list    print the names of the packages, one a line; installed or not
#   example: scripts/setup.sh --for run
# Shows what it would install, how much that is, and what apt would remove, before it does either. A second run finds
# nothing to do in a second.
set -euo pipefail
yes=0 check=0 list=0 purposes=test
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) yes=1 ;;
    --check) check=1 ;;
    --list) list=1 ;;
    --for) purposes=${2:?run, worker, package, tab, test, proxies, browsers or lint}; shift ;;
    -h|--help) sed -n '2,13p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "setup.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done

boost=1.81 postgres=15 browser=chromium-headless-shell
if [ -r /etc/os-release ]; then
  # shellcheck disable=SC1091
  case "$(. /etc/os-release; echo "${ID:-}-${VERSION_ID:-}")" in
    debian-12) ;;
    ubuntu-24.04) boost=1.83 postgres=16 browser= ;;   # its chromium is a snap: set MOEX_CHROMIUM
    *) echo "setup.sh: this system is not Debian 12 or Ubuntu 24.04; its package names may differ" >&2 ;;
  esac
fi

# What each purpose adds. The hub's list is what a configuration without tests, benches and moex-worker asks for; a test
# holds it to that.
for_run="g++ cmake ninja-build pkg-config ccache
  libboost$boost-dev libboost-url$boost-dev libssl-dev nlohmann-json3-dev libcli11-dev libtomlplusplus-dev libspdlog-dev
  libfmt-dev prometheus-cpp-dev libsqlite3-dev libpq-dev liblz4-dev libhwy-dev libpcre2-dev libutf8proc-dev
  libqrcodegencpp-dev libcurl4-openssl-dev
  emscripten nodejs npm"
for_worker="libvulkan-dev mesa-vulkan-drivers spirv-tools"
for_package="dpkg-dev"
for_tab="$browser"
for_test="libgtest-dev libgmock-dev librapidcheck-dev clang-14 libclang-rt-14-dev clang-format-14 git
  haproxy postgresql-$postgres"
for_proxies="nginx-light caddy"
for_browsers="firefox-esr webkit2gtk-driver xvfb"
for_lint="$for_run $for_worker libgtest-dev libgmock-dev librapidcheck-dev clang-14 clang-tidy-14 clang-format-14 git"
packages=
for purpose in ${purposes//,/ }; do
  case "$purpose" in
    run) packages+=" $for_run" ;;
    worker) packages+=" $for_run $for_worker" ;;
    package) packages+=" $for_run $for_worker $for_package" ;;
    tab) packages+=" $for_run $for_tab" ;;
    test) packages+=" $for_run $for_worker $for_tab $for_test" ;;
    proxies) packages+=" $for_proxies" ;;
    browsers) packages+=" $for_browsers" ;;
    lint) packages+=" $for_lint" ;;
    *) echo "setup.sh: --for $purpose: want run, worker, package, tab, test, proxies, browsers or lint" >&2; exit 2 ;;
  esac
done
# shellcheck disable=SC2086
packages=$(printf '%s\n' $packages | awk '!seen[$0]++')
if [ "$list" = 1 ]; then printf '%s\n' "$packages"; exit 0; fi

# Node and a browser may come from elsewhere: only what is not found is installed.
elsewhere() {
  case "$1" in
    nodejs) command -v node ;;
    npm) command -v npm ;;
    git) command -v git ;;
    chromium-headless-shell) [ -n "${MOEX_CHROMIUM:-}" ] || command -v chromium-headless-shell chromium google-chrome ;;
    *) return 1 ;;
  esac > /dev/null 2>&1
}
command -v apt-get >/dev/null || {
  echo "setup.sh: apt-get is not here; install by hand what $0 --for $purposes --list prints" >&2
  exit 1
}
missing=()
for package in $packages; do
  case "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)" in
    installed) ;;
    *) elsewhere "$package" || missing+=("$package") ;;
  esac
done
if [ ${#missing[@]} -eq 0 ]; then
  [ "$check" = 0 ] || echo "setup.sh: nothing is missing"
  exit 0
fi
echo "setup.sh: missing: ${missing[*]}"
[ "$check" = 0 ] || exit 1

export LC_ALL=C   # sentences of apt are read below
install=(apt-get install --no-install-recommends "${missing[@]}")
sudo=()
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "setup.sh: not root and no sudo; run as root: ${install[*]}" >&2; exit 1; }
  sudo=(sudo)
fi
if ! plan=$("${install[@]}" --simulate 2>&1); then
  echo "setup.sh: package lists are old or absent: updating them"
  "${sudo[@]}" apt-get update -q
  plan=$("${install[@]}" --simulate 2>&1) || {
    echo "$plan" >&2
    echo "setup.sh: apt cannot install them (above)" >&2
    exit 1
  }
fi

# What is downloaded: a line a file, 'URL' name bytes hash. What it takes on the disk: apt's own sum, which it says
# before it asks.
megabytes=$("${install[@]}" -y --print-uris 2>/dev/null \
  | awk '/^\047/ { bytes += $3 } END { printf "%.0f", bytes / 1e6 }')
disk_line='s/^After this operation, \(.*\) of additional disk space.*/\1/p'
disk=$("${install[@]}" --assume-no 2>/dev/null | sed -n "$disk_line" || true)
count=$(grep -c '^Inst ' <<< "$plan" || true)
removals=$(sed -n 's/^Remv \([^ ]*\).*/\1/p' <<< "$plan" | tr '\n' ' ')
echo "setup.sh: apt installs $count packages: $megabytes MB to download, ${disk:-an unknown size} on the disk;" \
  "it removes: ${removals:-none}"
if [ "$yes" = 0 ] && [ "$(id -u)" != 0 ]; then
  read -r -p "Go on? [y/N] " answer
  [ "$answer" = y ] || [ "$answer" = Y ] || { echo "setup.sh: nothing was changed"; exit 1; }
fi
go=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive "${install[@]}" -y -q)
"${go[@]}" || { "${sudo[@]}" apt-get update -q && "${go[@]}"; }
