#!/usr/bin/env bash
# Installs what is missing, builds, and serves a model with its chat page, join link and API.
#   usage: scripts/run.sh [--yes] [--with-tab] [--build-only] [moex-hub serve options...]
#     --yes         do not ask before installing packages
#     --with-tab    also open a headless Chromium as a contributor (software adapter where there is no GPU)
#     --build-only  install and build, then stop
#   example: scripts/run.sh
#   example: scripts/run.sh --with-tab --local-fallback off --listen 127.0.0.1:9000
# As root the hub runs as an unprivileged user ($MOEX_USER, $SUDO_USER or nobody) where that user can read this folder.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
yes=() with_tab=0 build_only=0 serve=()
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) yes=(--yes) ;;
    --with-tab) with_tab=1 ;;
    --build-only) build_only=1 ;;
    -h|--help) sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) serve+=("$1") ;;
  esac
  shift
done
build=${MOEX_BUILD:-$here/build}
"$here/scripts/setup.sh" --for run "${yes[@]}"
targets=(moex-hub moex-worker)
[ "$with_tab" = 1 ] && targets+=(moex_npm)
MOEX_BUILD=$build "$here/scripts/build.sh" "${targets[@]}"
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

# With a tab: the hub in the background, the tab once it is ready; Ctrl-C ends both.
log=$(mktemp)
"${hub[@]}" "${serve[@]}" > >(tee "$log") & hub_pid=$!
tab_pid=
cleanup() { trap - EXIT INT TERM; [ -n "$tab_pid" ] && kill "$tab_pid" 2>/dev/null || true; kill "$hub_pid" 2>/dev/null || true; wait "$hub_pid" 2>/dev/null || true; rm -f "$log"; }
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
join=
while [ -z "$join" ]; do
  kill -0 "$hub_pid" 2>/dev/null || exit 1
  join=$(sed -n 's/^ready: .*join=\([^ ]*\).*/\1/p' "$log" | head -1)
  [ -n "$join" ] || sleep 0.2
done
MOEX_NPM=$build/npm node "$here/scripts/open_tab.mjs" "$join" & tab_pid=$!
wait "$hub_pid"
