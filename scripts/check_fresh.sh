#!/usr/bin/env bash
# Tries the README's two commands as a new user meets them: each in a bare Debian 12 root that has seen neither this
# repository nor its packages. Prints how long install, build, ready and the first token took. Needs root.
#   usage: scripts/check_fresh.sh [--run-only | --test-only] [--keep] [--suite NAME]
#     --run-only   the first command only: until a chat over HTTP has answered and Ctrl-C has drained the hub
#     --test-only  the second command only: until every test has passed
#     --keep       leave the roots where they are and say where
#     --suite      the Debian release of the roots                                                      [bookworm]
#   example: sudo scripts/check_fresh.sh --run-only
# What is committed is tried (a clone of this repository). apt's sources, keyrings and settings, certificates, npm's
# settings and proxies come from this host. The roots lie under ${TMPDIR:-/var/tmp}; mounts and processes live in
# namespaces of their own, so that whatever ends this script ends them, too. Takes 3 GB and the packages' download.
set -euo pipefail
usage() { sed -n '2,12p' "$0" | sed 's/^# \{0,1\}//'; }
run=1 test=1 keep=0 suite=bookworm
arguments=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --run-only) test=0 ;;
    --test-only) run=0 ;;
    --keep) keep=1 ;;
    --suite) suite=${2:?a Debian release}; shift ;;
    -h|--help) usage; exit 0 ;;
    *) echo "check_fresh.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")/.." && pwd)
say() { printf 'check_fresh: %s\n' "$*"; }
fail() { printf 'check_fresh: %s\n' "$*" >&2; exit 1; }
# shellcheck source=scripts/bare_root.sh
. "$here/scripts/bare_root.sh"
need_tools git curl
enter_namespaces "${arguments[@]}"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/moex-fresh.XXXXXX")
trap 'leave_root "$work" "$keep"' EXIT
trap 'exit 130' INT TERM HUP
mount -t proc proc /proc                    # the namespace's own processes, here and for `kill -1`

# The sh block of "Try it": one command a line.
mapfile -t commands < <(awk '/^## Try it/ { on = 1 } on && /^```/ { if (inside) exit; inside = 1; next }
                             inside { sub(/ *#.*/, ""); print }' "$here/README.md")
[ "${#commands[@]}" = 2 ] || fail "README.md's \"Try it\" has ${#commands[@]} commands, want 2"

commit=$(git -C "$here" rev-parse HEAD)     # both roots try the same one, whatever lands meanwhile
now() { date +%s.%N; }
took() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.1f s", to - from }'; }

# make_root NAME: a bare Debian under $work/NAME with a clone of this repository in /moex.
make_root() {
  make_bare_root "$work/$1" "$suite"
  git clone --quiet --no-hardlinks "$here" "$work/$1/moex"
  git -C "$work/$1/moex" checkout --quiet --detach "$commit"
}

# inside NAME COMMAND
inside() { enter_root "$work/$1" MOEX_LISTEN=127.0.0.1:0 -- /bin/bash -c "cd /moex && exec $2"; }

# Each line with the time it came.
stamp() { while IFS= read -r line; do printf '%s %s\n' "$EPOCHREALTIME" "$line"; done; }
# when LOG PATTERN: the time of the first line with it.
when() { awk -v pattern="$2" 'index($0, pattern) { print $1; exit }' "$1"; }

try_run() {
  make_root run
  local log=$work/run.log begin command=${commands[0]} id url=
  say "in it: $command"
  : > "$log"
  set -m                                    # a process group of its own, which Ctrl-C can reach
  begin=$(now)
  (inside run "$command") > >(stamp > "$log") 2>&1 & id=$!
  set +m
  while [ -z "$url" ]; do
    kill -0 "$id" 2> /dev/null || { tail -40 "$log" >&2; fail "$command ended before it was ready (above)"; }
    url=$(sed -n 's/^[0-9.]* ready: url=\([^ ]*\).*/\1/p' "$log")
    sleep 0.2
  done

  local asked first answer=$work/answer question
  question='{"role": "user", "content": "Tell me a story about the sea."}'
  asked=$(now)
  curl -sS --no-buffer --max-time 300 "$url/v1/chat/completions" -H 'Content-Type: application/json' \
    -d "{\"model\": \"moex-demo\", \"messages\": [$question], \"max_tokens\": 24, \"stream\": true}" | stamp > "$answer"
  grep -q '\[DONE\]' "$answer" || { cat "$answer" >&2; fail "the chat had no whole answer (above)"; }
  first=$(when "$answer" '"content":')

  local stopped drained code=0
  stopped=$(now)
  kill -INT -- "-$id"
  wait "$id" || code=$?
  drained=$(now)
  [ "$code" = 0 ] || { tail -40 "$log" >&2; fail "after Ctrl-C the exit status was $code, want 0"; }

  local configured built ready
  configured=$(when "$log" 'build.sh: configuring')
  built=$(when "$log" 'run.sh: running as')
  ready=$(when "$log" 'ready: url=')
  sed -n 's/^[0-9.]* setup.sh: apt installs/check_fresh: apt installs/p' "$log"
  say "install $(took "$begin" "$configured"), build $(took "$configured" "${built:-$ready}"), ready" \
    "$(took "${built:-$ready}" "$ready"), first token $(took "$asked" "$first"), drained $(took "$stopped" "$drained")"
  say "from the command to the first token: $(took "$begin" "$first")"
}

try_test() {
  make_root test
  local log=$work/test.log begin command=${commands[1]} code=0
  say "in it: $command"
  begin=$(now)
  (inside test "$command") > "$log" 2>&1 || code=$?
  grep -E '^(setup.sh: apt installs|test.sh: .* took )' "$log" | sed 's/^/check_fresh: /' || true
  sed -n '/^ten slowest parts/,$p' "$log"
  [ "$code" = 0 ] || { tail -60 "$log" >&2; fail "$command ended with $code (above)"; }
  say "all of it: $(took "$begin" "$(now)")"
}

[ "$run" = 0 ] || try_run
[ "$test" = 0 ] || try_test
say "green at ${commit:0:7}"
