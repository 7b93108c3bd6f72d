#!/usr/bin/env bash
# Guards the rooms: what the top level holds, and that includes follow the arrows
#   protocol <- hub/base <- {hub/model, hub/registry};  hub/model <- hub/engine;  hub/engine/expert_backend.h <- hub/dispatch;
#   all of these <- hub/net <- hub/main;  protocol <- web-worker.
#   usage: scripts/check_layout.sh      prints what is wrong, exit 1 if anything is
set -u
cd "$(dirname "$0")/.." || exit 2
case "${1:-}" in -h|--help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;; esac
bad=0
complain() { echo "check_layout: $*"; bad=1; }

allowed_top=" CMakeLists.txt hub web-worker wgsl static protocol tests bench scripts README.md ARCHITECTURE.md LICENSE "
for entry in $(git ls-files | cut -d/ -f1 | sort -u); do
  case "$entry" in .*) continue ;; esac
  case "$allowed_top" in *" $entry "*) ;; *) complain "$entry does not belong at the top level" ;; esac
done

# room_of PATH: the room a file belongs to
room_of() {
  case "$1" in
    protocol/*) echo protocol ;;
    hub/base/*) echo base ;;
    hub/model/*) echo model ;;
    hub/registry/*) echo registry ;;
    hub/engine/*) echo engine ;;
    hub/dispatch/*) echo dispatch ;;
    hub/api/*|hub/net/*) echo net ;;
    hub/*) echo main ;;
    web-worker/*) echo worker ;;
    tests/*|bench/*) echo free ;;
    *) echo none ;;
  esac
}
sees() {  # which rooms a room may include, itself too
  case "$1" in
    protocol) echo " protocol " ;;
    base) echo " protocol base " ;;
    model) echo " protocol base model " ;;
    registry) echo " protocol base registry " ;;
    engine) echo " protocol base model engine " ;;
    dispatch) echo " protocol base model engine dispatch " ;;
    net) echo " protocol base model registry engine dispatch net " ;;
    main) echo " protocol base model registry engine dispatch net main " ;;
    worker) echo " protocol worker " ;;
  esac
}
while IFS=: read -r file line include; do
  target=$(printf '%s' "$include" | sed 's/.*#include "\([^"]*\)".*/\1/')
  from=$(room_of "$file")
  [ "$from" = free ] || [ "$from" = none ] && continue
  case "$target" in
    */*) to=$(room_of "$target") ;;
    *) continue ;;   # generated headers
  esac
  [ "$to" = none ] && continue
  case "$(sees "$from")" in *" $to "*) ;; *) complain "$file:$line: $from may not include $target ($to)" ;; esac
done < <(git grep -nE '^#include "' -- 'protocol/*' 'hub/*' 'web-worker/*' | sed 's/^\([^:]*\):\([0-9]*\):/\1:\2:/')

while IFS= read -r file; do
  case "$file" in hub/net/http/asio.h|hub/net/http/asio_impl.cpp|web-worker/native/asio.h) ;; *) complain "$file includes Boost; hub/net/http/asio.h and web-worker/native/asio.h are the doors" ;; esac
done < <(git grep -lE '#include <boost/' -- 'hub/*' 'protocol/*' 'web-worker/*')
while IFS= read -r file; do complain "$file includes sqlite; SQL lives in hub/registry"; done < <(git grep -lE '#include <sqlite3' -- ':!hub/registry/*' ':!tests/*' 'hub/*' 'protocol/*' 'web-worker/*')
while IFS= read -r file; do complain "$file reads files or threads; protocol has no I/O and no threads"; done \
  < <(git grep -lE '#include <(fstream|thread|mutex|chrono|filesystem|iostream)>' -- 'protocol/*')
# Highway's -inl headers are read once per target: they have toggle guards instead.
while IFS= read -r file; do complain "$file lacks #pragma once"; done < <(git ls-files '*.h' ':!*-inl.h' | xargs -r grep -L '#pragma once')
exit $bad
