#!/usr/bin/env bash
# Configures and builds into build/ (or $MOEX_BUILD). Called by run.sh and test.sh; quick when nothing changed.
#   usage: scripts/build.sh [--worker] [--tests] [--configure-only] [TARGET...]     default: everything configured
#     --worker          moex-worker, too (packages: scripts/setup.sh --for worker)
#     --tests           tests, benches and moex-worker, too (packages: scripts/setup.sh --for test)
#     --configure-only  make the build folder ready, build nothing
#   example: scripts/build.sh moex-hub
# What was asked for once stays in the build folder: a later call without the flag neither drops nor rebuilds it.
set -euo pipefail
tests=0 worker=0 configure_only=0
while [ $# -gt 0 ]; do
  case "$1" in
    -h|--help) sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    --tests) tests=1 worker=1 ;;
    --worker) worker=1 ;;
    --configure-only) configure_only=1 ;;
    -*) echo "build.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
    *) break ;;
  esac
  shift
done
cd "$(dirname "$0")/.."
build=${MOEX_BUILD:-build}
log() { printf '%s\n' "$*" >&2; }

# The options that the folder has and those that it shall have. A folder whose configuring failed has no build.ninja: it
# starts anew.
has() { [ -f "$build/build.ninja" ] && grep -q "^$1:BOOL=ON" "$build/CMakeCache.txt"; }
options=() changed=0
want() {   # want NAME ASKED
  if has "$1"; then return; fi
  if [ "$2" = 1 ]; then options+=("-D$1=ON"); changed=1; else options+=("-D$1=OFF"); fi
}
want MOEX_WORKER "$worker"
want MOEX_TESTS "$tests"
want MOEX_BENCH "$tests"
if [ ! -f "$build/build.ninja" ] || [ "$changed" = 1 ]; then
  log "build.sh: configuring $build"
  mkdir -p "$build"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "${options[@]}" > "$build/configure.log" 2>&1 \
    || { rm -f "$build/build.ninja"; cat "$build/configure.log" >&2; exit 1; }
fi
[ "$configure_only" = 0 ] || exit 0

if [ -t 2 ]; then
  cmake --build "$build" ${1:+--target "$@"} >&2
else  # a log: a line every tenth of the way, and what failed
  # shellcheck disable=SC2016
  tenths='match($0, /^\[[0-9]+\/[0-9]+\]/) {
            split(substr($0, 2, RLENGTH - 2), n, "/"); t = int(10 * n[1] / n[2])
            if (t > said) { said = t; print "build.sh: " n[1] " of " n[2]; fflush() }
          }'
  cmake --build "$build" ${1:+--target "$@"} 2>&1 | tee "$build/build.log" | awk "$tenths" >&2 || {
    grep -E 'FAILED|error|Error' -A8 "$build/build.log" | head -80 >&2
    tail -30 "$build/build.log" >&2
    exit 1
  }
fi
