#!/usr/bin/env bash
# scripts/test.sh ends as its tests do: with a failed one it exits with 1 and counts it; a build that failed runs none.
# --sanitize builds with g++'s sanitizers and runs the GoogleTest programs alone.
#   usage: tests/layout/test_script.sh SCRATCH_FOLDER
# dpkg-query, cmake and ctest are played by scripts of three lines: nothing is installed, built or run.
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
case "${1:-}" in ''|-h|--help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;; esac
rm -rf "$1"
mkdir -p "$1/bin" "$1/build"
scratch=$(cd "$1" && pwd)
bad=0
complain() { echo "test_script: $*"; bad=1; }

play() { printf '#!/bin/sh\n%s\n' "$2" > "$scratch/bin/$1"; chmod +x "$scratch/bin/$1"; }
play dpkg-query 'echo installed'
play cmake 'echo "$*" >> "$CALLS"; exit "${CMAKE_CODE:-0}"'
play ctest 'echo "ctest $*" >> "$CALLS"; cp "$REPORT" tests.xml; exit "$CTEST_CODE"'
cat > "$scratch/report.xml" <<'XML'
<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="Linux-c++" tests="3" failures="1" disabled="0" skipped="1">
  <testcase name="A.Passes" classname="A.Passes" time="0.25" status="run">
  </testcase>
  <testcase name="A.Fails" classname="A.Fails" time="1.5" status="fail">
    <failure message=""/>
  </testcase>
  <testcase name="A.IsSkipped" classname="A.IsSkipped" time="0" status="notrun">
    <skipped message="SKIP_RETURN_CODE=77"/>
  </testcase>
</testsuite>
XML
mkdir -p "$scratch/build/Testing/Temporary"
cat > "$scratch/build/Testing/Temporary/LastTest.log" <<'LOG'
1/2 Testing: A.Passes
a_test.cpp:1: Failure
2/2 Testing: A.Fails
a_test.cpp:3: Failure
two is not three
LOG
run() {   # run CTEST_CODE CMAKE_CODE ARGUMENTS...: test.sh's exit status in `code`, what it said in `said`
  code=0
  : > "$scratch/calls"
  said=$(env PATH="$scratch/bin:$PATH" REPORT="$scratch/report.xml" CTEST_CODE="$1" CMAKE_CODE="$2" \
    CALLS="$scratch/calls" MOEX_BUILD="$scratch/build" "$here/scripts/test.sh" "${@:3}" 2>&1) || code=$?
}

run 8 0
[ "$code" != 0 ] || complain "a failed test leaves exit status 0"
grep -qx '1 passed, 1 failed, 1 skipped' <<< "$said" || complain "the count is wrong: $(tail -1 <<< "$said")"
grep -qx '  A.IsSkipped' <<< "$said" || complain "what was skipped is not named"

grep -A 2 -x 'FAILED: A.Fails' <<< "$said" | grep -qx 'two is not three' || complain "why a test failed is not told"
[ "$(grep -c ': Failure' <<< "$said")" = 1 ] || complain "of a test that passed it is told why it failed"

run 0 0
[ "$code" = 0 ] || complain "tests that pass leave exit status $code"

run 0 0 --sanitize address,undefined -R Protocol
[ "$code" = 0 ] || complain "tests that pass under sanitizers leave exit status $code"
grep -q -- '-DMOEX_SANITIZE=address,undefined ' "$scratch/calls" || complain "--sanitize builds without sanitizers"
grep -q '^ctest .*--label-regex ^gtest\$ -R Protocol$' "$scratch/calls" \
  || complain "--sanitize runs: $(tail -1 "$scratch/calls")"

rm "$scratch/build/tests.xml"
run 0 1
[ "$code" != 0 ] || complain "a build that failed leaves exit status 0"
[ ! -e "$scratch/build/tests.xml" ] || complain "tests run after a build that failed"
exit "$bad"
