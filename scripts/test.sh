#!/usr/bin/env bash
# Installs what is missing, builds everything, runs every test, and prints the ten slowest parts.
#   usage: scripts/test.sh [--yes] [ctest options...]
#   example: scripts/test.sh -R Scheduler
# MOEX_DEMO_CHECKPOINT: folder of the demo's full-precision checkpoint; without it the tests that need it say SKIPPED.
# MOEX_BUILD: build folder [build].
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
yes=() rest=()
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) yes=(--yes) ;;
    -h|--help) sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) rest+=("$1") ;;
  esac
  shift
done
build=${MOEX_BUILD:-$here/build}
parts=$(mktemp); trap 'rm -f "$parts"' EXIT
timed() { local name=$1 begin=$SECONDS; shift; "$@"; printf '%s\t%s\n' "$((SECONDS - begin))" "$name" >> "$parts"; echo "test.sh: $name took $((SECONDS - begin)) s"; }

timed "install packages" "$here/scripts/setup.sh" --for test "${yes[@]}"
timed "build" env MOEX_BUILD="$build" "$here/scripts/build.sh"
cd "$build"
status=0
timed "tests" ctest --parallel 2 --output-on-failure --output-junit "$build/tests.xml" "${rest[@]}" || status=$?
echo
echo "ten slowest parts (seconds):"
{ cat "$parts"; sed -n 's/.*<testcase name="\([^"]*\)".* time="\([^"]*\)".*/\2\t\1/p' "$build/tests.xml" 2>/dev/null; } | sort -rn | awk 'NR <= 10'
skipped=$(grep -c '<skipped' "$build/tests.xml" 2>/dev/null || true)
[ "${skipped:-0}" -gt 0 ] && { echo; echo "SKIPPED ($skipped):"; grep -B1 '<skipped' "$build/tests.xml" | sed -n 's/.*<testcase name="\([^"]*\)".*/  \1/p'; }
total=$(sed -n 's/.*<testsuite .*tests="\([0-9]*\)".*/\1/p' "$build/tests.xml" 2>/dev/null | awk 'NR == 1')
[ -z "$total" ] && total=$(grep -o 'tests="[0-9]*"' "$build/tests.xml" | awk 'NR == 1' | tr -dc 0-9)
failed=$(grep -c '<failure' "$build/tests.xml" 2>/dev/null || true)
echo
echo "$((${total:-0} - ${failed:-0} - ${skipped:-0})) passed, ${failed:-0} failed, ${skipped:-0} skipped"
[ "${total:-0}" -gt 0 ] || { echo "test.sh: no test ran" >&2; exit 1; }
exit "$status"
