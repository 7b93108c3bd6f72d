#!/usr/bin/env bash
# scripts/check_layout.sh finds a circle of includes: of two files, of a source through its header, of a file and a
# folder beside it; and takes a file that two others include for none.
#   usage: tests/layout/circles.sh SCRATCH_FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")/../.." && pwd)
case "${1:-}" in ''|-h|--help) sed -n '2,4p' "$0" | sed 's/^# \{0,1\}//'; exit 2 ;; esac
rm -rf "$1"
mkdir -p "$1/scripts"
cp "$here/scripts/check_layout.sh" "$1/scripts/"
cd "$1"
git init --quiet
bad=0
complain() { echo "circles: $*"; bad=1; }

put() {   # put FILE INCLUDED...
  local file=$1
  shift
  mkdir -p "$(dirname "$file")"
  case "$file" in *.h) echo '#pragma once' ;; esac > "$file"
  for included; do echo "#include \"$included\""; done >> "$file"
  git add "$file"
}
said() { bash scripts/check_layout.sh 2>&1 || true; }
wants() {   # wants WHAT LINE...: these lines and no others
  local what=$1 found
  shift
  found=$(said)
  [ "$found" = "$(printf '%s\n' "$@")" ] || complain "$what: said '$found'"
}

base=hub/base
put $base/ground.h
put $base/left.h $base/ground.h
put $base/right.h $base/ground.h
put $base/top.cpp $base/top.h $base/left.h $base/right.h
put $base/top.h $base/ground.h
wants 'two ways down' ''

put $base/ground.cpp $base/ground.h $base/left.h
wants 'a source that includes who includes its header' \
  "check_layout: $base/ground.cpp:2: $base/ground -> $base/left: part of a circle of includes" \
  "check_layout: $base/left.h:2: $base/left -> $base/ground: part of a circle of includes"

put $base/ground.cpp $base/ground.h
put $base/deep/well.h $base/right.h
put $base/ground.h $base/deep/well.h
wants 'a file and a folder' \
  "check_layout: $base/deep/well.h:2: $base/deep/ -> $base/right: part of a circle of includes" \
  "check_layout: $base/ground.h:2: $base/ground -> $base/deep/: part of a circle of includes" \
  "check_layout: $base/right.h:2: $base/right -> $base/ground: part of a circle of includes"
exit $bad
