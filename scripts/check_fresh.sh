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
[ "$(id -u)" = 0 ] || fail "a root of one's own needs root: run it with sudo"
for tool in mmdebstrap git curl unshare chroot; do
  command -v "$tool" > /dev/null || fail "$tool is missing: apt-get install mmdebstrap git curl util-linux"
done
if [ -z "${MOEX_FRESH_INSIDE:-}" ]; then
  exec env MOEX_FRESH_INSIDE=1 unshare --mount --pid --fork --kill-child --propagation private "$0" "${arguments[@]}"
fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/moex-fresh.XXXXXX")
cleanup() {
  trap '' INT TERM HUP
  kill -KILL -1 2> /dev/null || true        # of this namespace: what the command left running
  wait 2> /dev/null || true
  grep -o " ${work}[^ ]*" /proc/self/mounts | sort -r | xargs -r umount --lazy || true
  if [ "$keep" = 1 ]; then say "kept: $work"; else rm -rf --one-file-system "$work"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
mount -t proc proc /proc                    # the namespace's own processes, here and for `kill -1`

# The sh block of "Try it": one command a line.
mapfile -t commands < <(awk '/^## Try it/ { on = 1 } on && /^```/ { if (inside) exit; inside = 1; next }
                             inside { sub(/ *#.*/, ""); print }' "$here/README.md")
[ "${#commands[@]}" = 2 ] || fail "README.md's \"Try it\" has ${#commands[@]} commands, want 2"

now() { date +%s.%N; }
took() { awk -v from="$1" -v to="$2" 'BEGIN { printf "%.1f s", to - from }'; }

# make_root NAME: a minimal Debian under $work/NAME with a clone of this repository in /moex.
make_root() {
  local root=$work/$1 source sources=()
  for source in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -s "$source" ] && sources+=("$source")
  done
  say "making a bare $suite root"
  mmdebstrap --quiet --mode=root --variant=minbase "$suite" "$root" "${sources[@]}" > "$work/$1.mmdebstrap" 2>&1 \
    || { tail -20 "$work/$1.mmdebstrap" >&2; fail "mmdebstrap failed (above)"; }

  # The host's ways out: settings of apt that name proxies, mirrors or dates; certificates; npm's registry.
  local path
  for path in /etc/apt/{apt.conf.d,auth.conf.d,keyrings,trusted.gpg.d} /usr/share/keyrings /etc/ssl/certs \
              /usr/local/share/ca-certificates /etc/npmrc ~root/.npmrc /etc/resolv.conf /etc/hosts; do
    [ -e "$path" ] || continue
    mkdir -p "$root$(dirname "$path")"
    cp -aL "$path" "$root$(dirname "$path")/" 2> /dev/null || true
  done
  rm -f "$root"/etc/apt/apt.conf.d/{20packagekit,50appstream,*docker*}

  mount --rbind --make-rslave /dev "$root/dev"
  mount -t proc proc "$root/proc"
  mount --rbind --make-rslave /sys "$root/sys"
  git clone --quiet --no-hardlinks "$here" "$root/moex"
}

# inside NAME COMMAND: as root, with a bare environment beside proxies and certificates.
inside() {
  local root=$work/$1 name keep_env=()
  for name in http{,s}_proxy no_proxy HTTP{,S}_PROXY NO_PROXY NODE_EXTRA_CA_CERTS SSL_CERT_FILE SSL_CERT_DIR; do
    [ -z "${!name:-}" ] || keep_env+=("$name=${!name}")
  done
  shift
  exec env -i "${keep_env[@]}" HOME=/root USER=root LANG=C.UTF-8 MOEX_LISTEN=127.0.0.1:0 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" /bin/bash -c "cd /moex && exec $1"
}

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
say "green at $(git -C "$here" rev-parse --short HEAD)"
