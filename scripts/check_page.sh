#!/usr/bin/env bash
# Holds the page: C++ laid out by clang-format 14, lines of at most 100 columns (C++) or 120 (JavaScript, WGSL,
# Markdown, shell, CMake), and functions of at most 70 lines.
#   usage: scripts/check_page.sh [PATH...]      default: all that git does not ignore; prints what is wrong, exit 1 if
#                                               anything is
#   example: scripts/check_page.sh hub/net
set -euo pipefail
case "${1:-}" in -h|--help) sed -n '2,6p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;; esac
cd "$(dirname "$0")/.."
bad=0

# Functions that may be longer, by name; none is.
long_functions=""

# Of the paths that were asked for; what is not added yet as well, since it soon is.
asked=("$@")
kept() {
  git ls-files --cached --others --exclude-standard --deduplicate -- "${asked[@]}" \
    | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}
select_files() {
  local pattern=$1
  kept | grep -E "$pattern" | grep -vE '^tests/(golden|fuzz/corpus)/' || true
}

mapfile -t cpp < <(select_files '\.(cpp|h)$')
mapfile -t prose < <(select_files '(\.(js|mjs|wgsl|md|sh|cmake)|CMakeLists\.txt|^\.ci/run)$')

if command -v clang-format-14 > /dev/null; then
  if [ ${#cpp[@]} -gt 0 ]; then
    if ! said=$(clang-format-14 --dry-run --Werror "${cpp[@]}" 2>&1); then
      echo "check_page: not as clang-format 14 has it:"
      sed -n 's/^\([^:]*:[0-9]*\):.*error:.*/\1/p' <<< "$said" | grep . || tail -5 <<< "$said"
      bad=1
    fi
  fi
else
  echo "check_page: clang-format-14 is not here (scripts/setup.sh --for lint): the layout is not looked at"
fi

# Characters, not bytes.
width() {
  local limit=$1
  shift
  [ $# -gt 0 ] || return 0
  LC_ALL=C.UTF-8 grep -nE "^.{$((limit + 1)),}" -- "$@" /dev/null | cut -d: -f1,2 \
    | sed "s/^/check_page: wider than $limit: /" || true   # no such line is what is wanted
}
wide=$(width 100 "${cpp[@]}"; width 120 "${prose[@]}")
[ -z "$wide" ] || { echo "$wide"; bad=1; }

# The layout is known to be clang-format's, so indentation tells what belongs together: a function's body runs from the
# line that ends in `{` to the `}` under its first line. What stands in raw strings is read like code and may end one
# early.
long=$(awk -v limit=70 -v allowed=" $long_functions " '
  function indent(line) { match(line, /^ */); return RLENGTH }
  FNR == 1 { open = 0; head = "" }
  open {
    if (indent($0) == column && substr($0, column + 1, 1) == "}") {
      if (FNR - begin - 1 > limit && index(allowed, " " name " ") == 0)
        print "check_page: " FILENAME ":" begin ": " name " has " FNR - begin - 1 " lines, want at most " limit
      open = 0; head = ""
    }
    next
  }
  /^ *(\/\/|#)/ || /^ *$/ || /;$/ || /^ *(public|private|protected):/ || /}[;,]?$/ { head = ""; next }
  /^ *(inline )?namespace .*{$/ || /^ *extern "C" {$/ { head = ""; next }
  /^ *(template <.*> )?(class|struct|union|enum) [^()]*{$/ { head = ""; next }
  {
    if (head == "") { head = $0; column = indent($0) } else head = head " " $0
    if ($0 ~ /{$/) {
      if (head ~ /\(/ && head !~ /R"[a-z]*\(/) {
        open = 1; begin = FNR; name = head
        sub(/\(.*/, "", name); sub(/^.*[ *&]/, "", name)
        if (head ~ /^ *TEST(_[FP])?\(/) { name = head; sub(/^[^(]*\([^,]*, */, "", name); sub(/\).*/, "", name) }
      }
      if (!open) head = ""
    }
  }' "${cpp[@]}" /dev/null)
[ -z "$long" ] || { echo "$long"; bad=1; }
exit "$bad"
