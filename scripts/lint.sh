#!/usr/bin/env bash
# clang-tidy 14 with the checks of .clang-tidy, then the page (scripts/check_page.sh), over the C++ of this repository.
#   usage: scripts/lint.sh [--changed] [PATH...]      default: every tracked .cpp that the build compiles
#     --changed   only what differs from the main branch, and what is not committed
#   example: scripts/lint.sh --changed
#   example: scripts/lint.sh hub/net
# Prints each finding once; exit 1 if there is any. MOEX_LINT_BUILD: its own configuration [build-lint].
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
changed=0 paths=()
while [ $# -gt 0 ]; do
  case "$1" in
    --changed) changed=1 ;;
    -h|--help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    -*) echo "lint.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
    *) paths+=("$1") ;;
  esac
  shift
done
cd "$here"
"$here/scripts/setup.sh" --for lint

if [ "$changed" = 1 ]; then
  base=$(git merge-base HEAD origin/main 2> /dev/null || git merge-base HEAD main 2> /dev/null || git rev-parse HEAD)
  mapfile -t paths < <(git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard)
  [ ${#paths[@]} -gt 0 ] || { echo "lint.sh: nothing has changed since ${base:0:9}"; exit 0; }
fi
mapfile -t sources < <(git ls-files --cached --others --exclude-standard -- "${paths[@]}" | grep '\.cpp$' || true)

# clang reads no header that g++ has precompiled, so the lint has a configuration of its own. It builds nothing but the
# kernels, which the worker's sources include. What costs is parsing headers, so it reads the batches that the build
# compiles: a third of the time of each source alone.
build=${MOEX_LINT_BUILD:-build-lint}
mkdir -p "$build"
cmake -S . -B "$build" -G Ninja -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_C_COMPILER=clang-14 \
  -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON -DMOEX_BATCH=6 -DMOEX_WEB=OFF > "$build/configure.log" 2>&1 \
  || { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build" --target moex_kernels > "$build/kernels.log" 2>&1 \
  || { tail -20 "$build/kernels.log" >&2; exit 1; }

# A line for each source that is compiled: its path, and what the compiler is called with (its batch, or itself).
units() {
  grep -o '"file": "[^"]*"' "$build/compile_commands.json" | cut -d '"' -f 4 | sort -u | while read -r unit; do
    case "$unit" in
      */batches/*) sed -n "s#^.include \"\(.*\)\"#\1\t$unit#p" "$unit" ;;
      *) printf '%s\t%s\n' "${unit#"$here/"}" "$unit" ;;
    esac
  done
}
# Kernels ask for features of processors that clang 14 has no name for, a test for a type; it reads on behind those
# errors. The .clang-tidy of tests/ and bench/ is not seen from a batch: what it leaves out is left out here.
noise=' invalid cpu feature string| _Float16 is not supported'
noise+='|^(tests|bench)/.*\[(performance-|bugprone-suspicious-memory-comparison)'
wanted() { printf '%s\n' "${sources[@]}"; }
findings=$(units | awk -F '\t' 'NR == FNR { wanted[$1]; next } $1 in wanted && !seen[$2]++ { print $2 }' <(wanted) - \
  | xargs -r -n 1 -P "$(nproc)" clang-tidy-14 --quiet -p "$build" 2> /dev/null \
  | grep -E "^$here/.*(warning|error): " | sort -u | sed "s#^$here/##" \
  | grep -vE "$noise" \
  | awk -F : 'NR == FNR { wanted[$1]; next } $1 !~ /\.cpp$/ || $1 in wanted' <(wanted) -) || true   # no neighbour's
[ -z "$findings" ] || printf '%s\n' "$findings"

page=0
scripts/check_page.sh "${paths[@]}" || page=1
[ -z "$findings" ] && [ "$page" = 0 ]
