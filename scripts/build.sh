#!/usr/bin/env bash
# Configures and builds into build/ (or $MOEX_BUILD). Called by run.sh and test.sh; quick when nothing changed.
#   usage: scripts/build.sh [TARGET...]         default: everything
#   example: scripts/build.sh moex-hub moex_web
set -euo pipefail
case "${1:-}" in -h|--help) sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;; esac
cd "$(dirname "$0")/.."
build=${MOEX_BUILD:-build}
log() { printf '%s\n' "$*" >&2; }
if [ ! -f "$build/build.ninja" ]; then
  log "build.sh: configuring $build"
  mkdir -p "$build"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release > "$build/configure.log" 2>&1 || { cat "$build/configure.log" >&2; exit 1; }
fi
if [ -t 2 ]; then
  cmake --build "$build" ${1:+--target "$@"} >&2
else  # a log: a line every tenth of the way, and what failed
  tenths='match($0, /^\[[0-9]+\/[0-9]+\]/) { split(substr($0, 2, RLENGTH - 2), n, "/"); t = int(10 * n[1] / n[2]); if (t > said) { said = t; print "build.sh: " n[1] " of " n[2]; fflush() } }'
  cmake --build "$build" ${1:+--target "$@"} 2>&1 | tee "$build/build.log" | awk "$tenths" >&2 \
    || { grep -E 'FAILED|error|Error' -A8 "$build/build.log" | head -80 >&2; tail -30 "$build/build.log" >&2; exit 1; }
fi
