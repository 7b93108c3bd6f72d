#!/usr/bin/env bash
# Installs what is missing, builds everything, runs every test, and prints the ten slowest parts.
#   usage: scripts/test.sh [--yes] [--proxies] [--browsers] [--sanitize KINDS | --bench] [ctest options...]
#     --yes             do not ask before installing packages
#     --proxies         installs nginx and Caddy, too, for the stories behind proxies; without them haproxy is tried
#                       alone, since Debian's nginx and Caddy begin to serve port 80 once they are installed
#     --browsers        installs Firefox and WebKitGTK, too, for the stories in them: 67 packages of
#                       550 MB, and some minutes
#     --sanitize KINDS  the C++ tests alone, built with g++'s sanitizers into a folder of their own:
#                       address,undefined (build-asan) or thread (build-tsan)
#     --bench           no test: each stage of a step beside its bound; fails where one reaches less than half of what
#                       bench/results/stages.* recorded of this machine, and passes on a machine that they do not know
#   example: scripts/test.sh -R Scheduler
#   example: scripts/test.sh --sanitize address,undefined -R Protocol
# MOEX_DEMO_CHECKPOINT: folder of the demo's full-precision checkpoint; without it the tests that need it say SKIPPED.
# MOEX_FORMAT_CHECKPOINTS: folder of checkpoints in FP8, GPTQ, AWQ, GGUF, ... with a golden.json each; likewise.
# MOEX_BUILD: build folder [build].
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
yes=() rest=() sanitize='' bench='' purposes=test
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) yes=(--yes) ;;
    --bench) bench=1 ;;
    --proxies|--browsers) purposes+=,${1#--} ;;
    --sanitize) sanitize=${2:?address,undefined or thread}; shift ;;
    -h|--help) sed -n '2,17p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) rest+=("$1") ;;
  esac
  shift
done
case "$sanitize" in
  '') build=${MOEX_BUILD:-$here/build} ;;
  thread) build=${MOEX_BUILD:-$here/build-tsan} ;;
  *) build=${MOEX_BUILD:-$here/build-asan} ;;
esac
parts=$(mktemp)
trap 'rm -f "$parts"' EXIT
timed() {   # timed NAME COMMAND...: gives back what the command gave
  local name=$1 begin=$SECONDS code=0
  shift
  "$@" || code=$?
  printf '%s\t%s\n' "$((SECONDS - begin))" "$name" >> "$parts"
  echo "test.sh: $name took $((SECONDS - begin)) s"
  return "$code"
}

# Programs of the tests and what they link; no precompiled headers and no batches, so that a missing include is found
# here.
# shellcheck disable=SC2317
configure_sanitized() {
  cmake -S "$here" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1 -fno-var-tracking" \
    "-DMOEX_SANITIZE=$sanitize" -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DMOEX_BATCH=1 \
    -DMOEX_WEB=OFF -DMOEX_BENCH=OFF -DMOEX_WORKER=ON -DMOEX_TESTS=ON > "$build/configure.log" 2>&1 \
    || { cat "$build/configure.log" >&2; return 1; }
}

if [ -n "$bench" ]; then
  [ -f "$build/build.ninja" ] || timed "configure" cmake -S "$here" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release
  timed "build" cmake --build "$build" --target stage_bench
  cat "$here"/bench/results/stages.*.csv > "$parts"
  "$build/stage_bench" --header --check "$parts"
  exit
fi

timed "install packages" "$here/scripts/setup.sh" --for "$purposes" "${yes[@]}"
if [ -n "$sanitize" ]; then
  mkdir -p "$build"
  timed "configure" configure_sanitized
  timed "build" env MOEX_BUILD="$build" "$here/scripts/build.sh" moex_tests moex-hub
  # What runs in a GoogleTest program; fuzzers have sanitizers of their own, stories in browsers another compiler.
  rest=(--label-regex '^gtest$' "${rest[@]}")
  # With it g++ 12 lays vectors of 64 bytes where 32 divide the address: each first kernel of AVX-512 faults.
  after_return=1
  if grep -q avx512f /proc/cpuinfo; then after_return=0; fi
  export ASAN_OPTIONS=detect_stack_use_after_return=$after_return:strict_string_checks=1
  export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1
else
  timed "build" env MOEX_BUILD="$build" "$here/scripts/build.sh" --tests
fi
cd "$build"
status=0
# One more than cores: beside a story, which counts as two, there is room for a test of one thread.
timed "tests" ctest --parallel $(($(nproc) + 1)) --output-on-failure --output-junit "$build/tests.xml" "${rest[@]}" \
  || status=$?

# ctest's report, one line a test: seconds, name, and run, fail or notrun (skipped, or a program that was not built).
report() {
  awk '
    function attribute(name) {
      if (!match($0, " " name "=\"[^\"]*\"")) return ""
      return substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
    }
    /<testcase / { print attribute("time") "\t" attribute("name") "\t" attribute("status") }' "$build/tests.xml"
}
named() { report | awk -F '\t' -v wanted="$1" '$3 == wanted { print "  " $2 }'; }
# Where a failed test said what is wrong, or its last lines: a log that is cut in the middle still has its end.
wrong() {
  local said log=Testing/Temporary/LastTest.log
  [ -f "$log" ] || return 0
  said=$(awk -v name="$1" '
    / Testing: / { is_its = substr($0, index($0, " Testing: ") + 10) == name }
    is_its' "$log")
  grep -E -A 25 '^ *not ok|: Failure$|ERROR: |: fatal' <<< "$said" | sed -n 1,60p || tail -n 30 <<< "$said"
  # what stories said of themselves, for example how far each process was at a time limit
  grep '^# ' <<< "$said" | grep -vE '^# (Subtest|tests|suites|pass|fail|cancelled|skipped|todo|duration_ms)\b' |
    sed -n 1,40p || true
}
passed=$(named run | wc -l) failed=$(named fail | wc -l) skipped=$(named notrun | wc -l)
echo
echo "ten slowest parts (seconds):"
{ cat "$parts"; report | cut -f 1,2; } | sort -rn | awk 'NR <= 10'
if [ "$skipped" -gt 0 ]; then
  echo
  echo "SKIPPED ($skipped):"
  named notrun
fi
named fail | while read -r name; do
  echo
  echo "FAILED: $name"
  wrong "$name"
done
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$((passed + failed))" -gt 0 ] || { echo "test.sh: no test ran" >&2; exit 1; }
exit "$status"
