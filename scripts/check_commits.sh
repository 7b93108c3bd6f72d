#!/usr/bin/env bash
# Checks the form of commits: a subject `room: verb object` of at most 60 columns, then a blank line and a body.
#   usage: scripts/check_commits.sh RANGE      prints what is wrong, exit 1 if anything is
#   example: scripts/check_commits.sh main..HEAD
set -euo pipefail
case "${1:-}" in ''|-h|--help) sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;; esac
bad=0 count=0
complain() { echo "check_commits: ${commit:0:9} \"$subject\": $*"; bad=1; }

# A subject says what the commit does: its first word is a verb, so none of these.
no_verb=' a an and as at by for from in it its many more no nobody of on one only so some somebody such that the their'
no_verb+=' there these they this those to what where which who whose with '

commits=$(git rev-list --no-merges "$1")
for commit in $commits; do
  count=$((count + 1))
  subject=$(git log -1 --format=%s "$commit")
  [ "${#subject}" -le 60 ] || complain "${#subject} columns, at most 60"
  if [[ "$subject" =~ ^[a-z][A-Za-z0-9_/{},\ .-]*:\ (.+)$ ]]; then
    said=${BASH_REMATCH[1]}
    first=${said%% *}
    [[ "$no_verb" != *" ${first,,} "* ]] || complain "\"$first\" is no verb; wanted \"room: verb object\""
    [[ "$said" == *" "* ]] || complain "a verb without an object"
    [[ "$said" != *. ]] || complain "ends with a full stop"
    [[ "$said" != *\;* ]] || complain "a semicolon joins two ideas: one idea a commit"
  else
    complain "wanted \"room: verb object\""
  fi
  [ -n "$(git log -1 --format=%b "$commit" | tr -d '[:space:]')" ] || complain "no body: say why, and what was tried"
done
echo "check_commits: $count commits"
exit "$bad"
