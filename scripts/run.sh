#!/usr/bin/env bash
# Installs what is missing, builds, and serves a model with its chat page, join link and API.
#   usage: scripts/run.sh [--yes] [--with-tab] [--build-only | --no-build] [moex-hub serve options...]
#     --yes         do not ask before installing packages
#     --with-tab    also open a headless Chromium as a contributor (software adapter where there is no GPU)
#     --build-only  install and build, then stop
#     --no-build    take what is built already
#   example: scripts/run.sh
#   example: scripts/run.sh --with-tab --local-fallback off --listen 127.0.0.1:9000
# As root the hub runs as an unprivileged user ($MOEX_USER, $SUDO_USER or nobody) where that user can read this folder.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
yes=() with_tab=0 build_only=0 no_build=0 serve=()
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) yes=(--yes) ;;
    --with-tab) with_tab=1 ;;
    --build-only) build_only=1 ;;
    --no-build) no_build=1 ;;
    -h|--help) sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) serve+=("$1") ;;
  esac
  shift
done
build=${MOEX_BUILD:-$here/build}
if [ "$no_build" = 0 ]; then
  purposes=run targets=(moex-hub)   # moex-worker is asked for by itself: scripts/build.sh --worker
  if [ "$with_tab" = 1 ]; then
    purposes=run,tab
    targets+=(moex_npm)
  fi
  "$here/scripts/setup.sh" --for "$purposes" "${yes[@]}"
  MOEX_BUILD=$build "$here/scripts/build.sh" "${targets[@]}"
fi
[ "$build_only" = 1 ] && exit 0

hub=("$build/moex-hub" serve)
if [ "$(id -u)" = 0 ]; then
  user=${MOEX_USER:-${SUDO_USER:-nobody}}
  if [ "$user" != root ] && setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups \
       test -x "$build/moex-hub" -a -r "$here/static/models/demo/manifest.json" 2>/dev/null; then
    state=/var/lib/moex-$user
    install -d -m 700 -o "$user" -g "$(id -g "$user")" "$state"
    case " ${serve[*]:-} " in *" --state "*) ;; *) serve=(--state "${MOEX_STATE:-$state}" "${serve[@]}") ;; esac
    hub=(setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups --no-new-privs "$build/moex-hub" serve)
    echo "run.sh: running as root, so the hub runs as $user (state in $state)" >&2
  else
    echo "run.sh: the hub runs as root: user $user cannot read $here (set MOEX_USER to one who can)" >&2
  fi
fi
cd "$here"
if [ "$with_tab" = 0 ]; then
  exec "${hub[@]}" "${serve[@]}"
fi

# With a tab: the hub in the background, the tab once it is ready. Each has a session of its own, so that Ctrl-C reaches
# only this script: it asks the hub to stop, which drains (a second Ctrl-C: at once) while the tab still computes, and
# ends the tab by its id after that.
log=$(mktemp) hub_pid= tab_pid= asked=0
stop() { interrupted=1 asked=1; [ -z "$hub_pid" ] || kill -TERM "$hub_pid" 2>/dev/null || true; }
trap stop INT TERM HUP
end() { kill -TERM "$1" 2>/dev/null && wait "$1" || true; }
cleanup() { [ -z "$hub_pid" ] || end "$hub_pid"; [ -z "$tab_pid" ] || end "$tab_pid"; rm -f "$log"; }
trap cleanup EXIT
setsid "${hub[@]}" "${serve[@]}" > >(exec tee -i "$log") & hub_pid=$!
[ "$asked" = 0 ] || stop                 # asked while it was being started
join=
while kill -0 "$hub_pid" 2>/dev/null; do
  join=$(sed -n 's/^ready: .*join=\([^ ]*\).*/\1/p' "$log" | head -1) || true
  [ -z "$join" ] || break
  sleep 0.2 || true                      # Ctrl-C ends it too
done
if [ -n "$join" ] && [ "$asked" = 0 ]; then
  MOEX_NPM=$build/npm setsid node "$here/scripts/open_tab.mjs" "$join" & tab_pid=$!
fi
interrupted=1 code=0
while [ "$interrupted" = 1 ]; do   # a signal ends the wait, not the hub
  interrupted=0
  wait "$hub_pid" && code=0 || code=$?
done
exit "$code"
