#!/usr/bin/env bash
# Prints comments of the tree out of their context, drawn by a seed, to be read with fresh eyes: each should be clear at
# first reading.
#   usage: scripts/draw_comments.sh SEED [COUNT]      default: 60; the same seed and tree give the same comments
#   example: scripts/draw_comments.sh 20261126
set -euo pipefail
case "${1:-}" in ''|-h|--help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;; esac
cd "$(dirname "$0")/.."
scripts/check_words.sh --print | LC_ALL=C sort \
  | awk -v seed="$1" 'BEGIN { srand(seed) } { printf "%.9f\t%s\n", rand(), $0 }' | sort -n | cut -f 2- \
  | awk -F '\t' -v count="${2:-60}" 'NR <= count { print NR ". " $1; print "   " $2 }' | fold -s -w 118
