#!/usr/bin/env bash
# scripts/run.sh asks for the packages of a hub and builds moex-hub alone: a browser comes with --with-tab, Vulkan's
# drivers and moex-worker with neither. setup.sh says how much it will download before it does.
#   usage: tests/layout/setup_script.sh SCRATCH_FOLDER
# dpkg-query, apt-get, sudo and cmake are played by scripts of a few lines: nothing is installed or built.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
case "${1:-}" in ''|-h|--help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;; esac
rm -rf "$1"
mkdir -p "$1/bin" "$1/build"
scratch=$(cd "$1" && pwd)
bad=0
complain() { echo "setup_script: $*"; bad=1; }

play() { printf '#!/bin/sh\n%s\n' "$2" > "$scratch/bin/$1"; chmod +x "$scratch/bin/$1"; }
play sudo 'exec "$@"'
play dpkg-query "for name; do :; done; echo \"\$name\" >> '$scratch/packages'; echo \"\${STATUS:-installed}\""
play cmake "echo \"\$*\" >> '$scratch/cmake'"
play apt-get 'case "$*" in
  *--simulate*) echo "Inst one (1)"; echo "Inst two (2)"; echo "Remv three (3)" ;;
  *--print-uris*) printf "%s\n" "'\''http://x/1'\'' 1.deb 1500000 h" "'\''http://x/2'\'' 2.deb 2500000 h" ;;
  *--assume-no*) echo "After this operation, 12.3 MB of additional disk space will be used."; exit 1 ;;
esac'

run() {   # run ARGUMENTS...: what run.sh asked for in `packages`, what it built in `built`
  local said
  : > "$scratch/packages"
  : > "$scratch/cmake"
  said=$(PATH="$scratch/bin:$PATH" MOEX_BUILD="$scratch/build" "$here/scripts/run.sh" --build-only "$@" 2>&1) \
    || complain "run.sh --build-only $*: $said"
  packages=$(cat "$scratch/packages")
  built=$(sed -n 's/^--build .* --target //p' "$scratch/cmake")
}
lacks() { for package; do ! grep -qx "$package" <<< "$packages" || complain "a hub asks for $package"; done; }
browser=$("$here/scripts/setup.sh" --for tab --list 2> /dev/null | grep chromium || true)   # none of Ubuntu's own

run
[ "$built" = moex-hub ] || complain "run.sh builds $built"
grep -qx g++ <<< "$packages" || complain "run.sh does not ask for g++: this test has lost its eyes"
lacks mesa-vulkan-drivers libvulkan-dev chromium-headless-shell librapidcheck-dev

run --with-tab
[ "$built" = "moex-hub moex_npm" ] || complain "run.sh --with-tab builds $built"
[ -z "$browser" ] || grep -qx "$browser" <<< "$packages" || complain "--with-tab does not ask for $browser"
lacks mesa-vulkan-drivers librapidcheck-dev

said=$(PATH="$scratch/bin:$PATH" STATUS=unknown "$here/scripts/setup.sh" --for run --yes 2>&1) \
  || complain "setup.sh failed: $said"
grep -q '2 packages: 4 MB to download, 12.3 MB on the disk; it removes: three' <<< "$said" \
  || complain "setup.sh does not say what it will do: $said"
exit "$bad"
