#!/usr/bin/env bash
# Counts the words that make comments hard to read ("Plain words" in .github/CONTRIBUTING.md), per 1,000 words of all
# comments of C++, JavaScript and WGSL, and fails above a limit.
#   usage: scripts/check_words.sh [--list | --print] [PATH...]      default: all that git does not ignore
#     --list    also print each comment with such a word, as FILE:LINE: TEXT
#     --print   print every comment of four words or more and check nothing
#   example: scripts/check_words.sh --list hub/net
set -euo pipefail
mode=check
case "${1:-}" in
  -h|--help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
  --list|--print) mode=${1#--}; shift ;;
  -*) echo "check_words.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."

# One comment a line: FILE:LINE<tab>TEXT. Lines of // that follow each other are one comment; a comment behind code
# counts where a code character and a blank precede it. A licence is no comment of ours.
comments() {
  git ls-files -z --cached --others --exclude-standard --deduplicate -- "$@" \
    | { grep -zE '\.(cpp|h|js|mjs|wgsl)$' || true; } | { grep -zvE '^tests/(golden|fuzz/corpus)/' || true; } \
    | while IFS= read -r -d '' file; do [ ! -f "$file" ] || printf '%s\0' "$file"; done \
    | LC_ALL=C xargs -0 -r awk '
        function flush() {
          if (text != "" && split(text, unused, " ") >= 4 && text !~ /Copyright|License|SPDX/) print place "\t" text
          text = ""
        }
        FNR == 1 { flush() }
        /^[ \t]*\/\// {
          line = $0; sub(/^[ \t]*\/+[ \t]*/, "", line)
          if (text == "") place = FILENAME ":" FNR
          text = text (text == "" ? "" : " ") (line == "" ? " " : line)
          next
        }
        {
          flush()
          if (!match($0, /[;{,)][ \t]+\/\/+ /)) next
          place = FILENAME ":" FNR; text = substr($0, RSTART + RLENGTH); flush()
        }
        END { flush() }'
}
if [ "$mode" = print ]; then comments "$@"; exit; fi

comments "$@" | LC_ALL=C awk -F '\t' -v list="$([ "$mode" = list ] && echo 1 || echo 0)" '
  BEGIN {
    split("who whoever whose whom", words, " "); for (i in words) group[words[i]] = "who"
    split("somebody nobody everybody anybody", words, " "); for (i in words) group[words[i]] = "body"
    split("lie lies lay stand stands stood tell tells told", words, " "); for (i in words) group[words[i]] = "lie"
    split("What Who Whose Of It Its That Those So Whether As One Nobody Somebody Whoever Else", words, " ")
    for (i in words) vague[words[i]] = 1
  }
  {
    ++num_comments
    num_words += split($2, unused, " ")
    text = $2; gsub(/[^A-Za-z]+/, " ", text); sub(/^ /, "", text)
    count = split(text, word, " ")
    found = 0
    for (i = 1; i <= count; ++i) if (tolower(word[i]) in group) { ++hits[group[tolower(word[i])]]; found = 1 }
    if ($2 ~ /^[A-Za-z]/ && word[1] in vague) { ++num_vague; found = 1 }
    if (found && list == 1) print $1 ": " substr($2, 1, 160)
  }
  function check(what, found, limit) {
    printf "check_words: %s %.1f, at most %.1f\n", what, found, limit
    if (found > limit) bad = 1
  }
  END {
    if (num_comments == 0) { print "check_words: no comment here"; exit }
    printf "check_words: %d comments of %d words; per 1,000 words:\n", num_comments, num_words
    check("who, whose", 1000 * hits["who"] / num_words, 1.0)
    check("somebody, nobody", 1000 * hits["body"] / num_words, 0.3)
    check("lie, stand, tell", 1000 * hits["lie"] / num_words, 1.0)
    check("per cent of comments whose first word is no subject", 100 * num_vague / num_comments, 7)
    exit bad
  }'
