#!/usr/bin/env bash
# The run configuration asks for no package that `setup.sh --for run` does not install, holds the targets that run.sh
# builds, and shares its build folder with the tests: whichever comes second turns nothing off and rebuilds nothing.
#   usage: tests/layout/run_packages.sh SCRATCH_FOLDER
#   example: tests/layout/run_packages.sh /tmp/run_packages
# What CMake found stands in its cache as a path, and dpkg knows whose file that is: one of the listed packages or of
# those that they depend on. What a person put under /usr/local belongs to nobody and passes.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
case "${1:-}" in ''|-h|--help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;; esac
export MOEX_BUILD=$1
if ! command -v dpkg-query apt-cache ninja > /dev/null; then echo "SKIPPED: no dpkg here"; exit 77; fi
bad=0
complain() { echo "run_packages: $*"; bad=1; }
configure() { "$here/scripts/build.sh" --configure-only "$@"; }
rm -rf "$MOEX_BUILD"
configure

for target in moex-hub moex_npm; do
  ninja -C "$MOEX_BUILD" -n "$target" > /dev/null || complain "run.sh builds $target, which the run configuration lacks"
done

mapfile -t listed < <("$here/scripts/setup.sh" --for run --list)
only_depends=(--recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances)
allowed=$(apt-cache depends "${only_depends[@]}" "${listed[@]}" 2> /dev/null \
  | awk '/^[a-z0-9]/ { sub(/:.*/, ""); print }' | sort -u)
checked=0
while IFS='=' read -r entry path; do
  # A folder may be several packages': one of the list is enough.
  owners=$(dpkg-query -S "$path" 2> /dev/null | sed -n "s|: $path\$||p" | tr ',' '\n' | sed 's/^ *//; s/:.*//')
  [ -n "$owners" ] || continue
  checked=$((checked + 1))
  grep -qxF "$owners" <<< "$allowed" \
    || complain "${entry%%:*} is $path of $(head -1 <<< "$owners"), which setup.sh --for run does not install"
done < <(grep -E '^[^=]*(:FILEPATH|_DIR:PATH)=/' "$MOEX_BUILD/CMakeCache.txt" | grep -v '^CMAKE_' || true)
[ "$checked" -gt 0 ] || complain "no path in CMakeCache.txt belongs to a package: this test has lost its eyes"

# run, test, run in one folder.
commands() { grep -E '"command": .*/(hub|batches)/[^ ]*\.cpp"' "$MOEX_BUILD/compile_commands.json" | sort; }
state() { grep -E '^MOEX_(TESTS|BENCH|WORKER|WEB):' "$MOEX_BUILD/CMakeCache.txt"; }
before=$(commands)
configure --tests
[ "$before" = "$(comm -12 <(echo "$before") <(commands))" ] \
  || complain "turning the tests on changes how the hub is compiled"
with_tests=$(state)
grep -q '^MOEX_TESTS:BOOL=ON' <<< "$with_tests" || complain "--tests leaves the tests off"
configure
[ "$with_tests" = "$(state)" ] || complain "run.sh after test.sh turns off what test.sh had built"
exit "$bad"
