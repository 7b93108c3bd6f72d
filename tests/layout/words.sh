#!/usr/bin/env bash
# scripts/check_words.sh counts words per 1,000 words of comments and fails above each of its limits;
# scripts/draw_comments.sh draws the same comments for the same seed; scripts/check_commits.sh names what is wrong with
# the form of a commit.
#   usage: tests/layout/words.sh SCRATCH_FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
case "${1:-}" in ''|-h|--help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;; esac
rm -rf "$1"
mkdir -p "$1/scripts" "$1/hub"
cp "$here"/scripts/{check_words,draw_comments,check_commits}.sh "$1/scripts/"
cd "$1"
git init --quiet
git config user.email test@example.com
git config user.name test
bad=0
complain() { echo "words: $*"; bad=1; }

# Files of 100 comments of ten words each, the first `count` of them with `word` in the middle or in front.
comments() {   # comments COUNT WORD [front]
  local i
  for i in $(seq 100); do
    if [ "$i" -gt "$1" ]; then echo "// The worker number $i holds one two three four five"
    elif [ "${3:-}" = front ]; then echo "// $2 worker number $i holds one two three four five"
    else echo "// The worker number $i $2 one two three four five"; fi
    echo "int value_$i = $i;"
  done > hub/file.cpp
}
fails() { if scripts/check_words.sh > said; then complain "$1: passed"; cat said; fi; }
passes() { scripts/check_words.sh > said || { complain "$1: failed"; cat said; }; }

comments 0 none; passes "a clean tree"
grep -q '100 comments of 1000 words' said || complain "counted otherwise: $(head -1 said)"
for word in who WHOSE whom; do comments 1 "$word"; passes "one $word"; comments 2 "$word"; fails "two $word"; done
for word in nobody Somebody; do comments 1 "$word"; fails "one $word"; done
for word in lies stood tells told; do
  comments 1 "$word"; passes "one $word"
  comments 2 "$word"; fails "two $word"
done
comments 7 What front; passes "seven without a subject"
comments 8 What front; fails "eight without a subject"
comments 50 understands; passes "a word that holds another"

# Comments behind code count, strings and file types of other kinds do not.
printf 'int x = 1;  // %s\n' 'nobody knows this one' > hub/file.cpp; fails "a comment behind code"
printf 'const char* x = "// %s";\n' 'nobody knows this one' > hub/file.cpp; passes "a string"
rm hub/file.cpp; echo '// nobody knows this one' > hub/file.txt; passes "no comment at all"
scripts/check_words.sh --list | grep -q 'no comment here' || complain "an empty tree is not named"

comments 0 none
[ "$(scripts/draw_comments.sh 7 5)" = "$(scripts/draw_comments.sh 7 5)" ] || complain "one seed, two drawings"
[ "$(scripts/draw_comments.sh 7 5)" != "$(scripts/draw_comments.sh 8 5)" ] || complain "two seeds, one drawing"
[ "$(scripts/draw_comments.sh 7 5 | grep -c '^[0-9]')" = 5 ] || complain "not as many as asked"

commit() { git commit --quiet --allow-empty -m "$1" ${2:+-m "$2"}; }
wants() {   # wants WORDS SUBJECT [BODY]: the last commit is refused with these words; empty: it is not
  commit "$2" "${3:-}"
  local said code=0
  said=$(scripts/check_commits.sh HEAD~1..HEAD) || code=$?
  if [ -z "$1" ]; then [ "$code" = 0 ] || complain "$2: $said"
  else { [ "$code" = 1 ] && grep -q "$1" <<< "$said"; } || complain "$2: said '$said', wanted '$1'"; fi
}
commit "scripts: begin a history" "why"
wants "" "hub/dispatch: hedge by measured p95" "A fixed delay was too long."
wants "no body" "hub/dispatch: hedge by measured p95"
wants "columns" "hub/dispatch: hedge by the p95 that was measured in the last minutes" "why"
wants "wanted" "hedge by measured p95" "why"
wants "no verb" "tests: what a last reading found" "why"
wants "without an object" "tests: mend" "why"
wants "two ideas" "tests: mend a name; drop a file" "why"
wants "full stop" "tests: mend a name." "why"
exit "$bad"
