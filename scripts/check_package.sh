#!/usr/bin/env bash
# Tries the Debian package where nothing else of this project is: in a bare Debian 12 root it installs with the packages
# that it depends on, `doctor` finds nothing wrong, the hub serves a chat under its unit, and removal leaves nothing but
# state. The steps of the Containerfile run in a second root, the alert rules go through promtool. Needs root.
#   usage: scripts/check_package.sh [--keep] [--suite NAME] [PACKAGE]      default: scripts/package.sh makes one
#     --keep   leave the roots where they are and say where
#     --suite  the Debian release of the roots                                                          [bookworm]
#   example: sudo scripts/check_package.sh build/moex_0.1.0_amd64.deb
# Where systemd is process 1 it runs the unit, in the root. Elsewhere tests/support/unit_launcher applies what the unit
# says of system calls, capabilities and files; then the root's own systemd runs it as process 1 of namespaces of its
# own, where the kernel grants those. The output says which. The roots lie under ${TMPDIR:-/var/tmp}.
set -euo pipefail
keep=0 suite=bookworm package='' arguments=("$@")
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=1 ;;
    --suite) suite=${2:?a Debian release}; shift ;;
    -h|--help) sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    -*) echo "check_package.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
    *) package=$(realpath "$1") ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")/.." && pwd)
say() { printf 'check_package: %s\n' "$*"; }
fail() { printf 'check_package: %s\n' "$*" >&2; exit 1; }
# shellcheck source=scripts/bare_root.sh
. "$here/scripts/bare_root.sh"
need_tools curl g++ dpkg-deb nsenter pgrep
if [ -z "$package" ]; then
  package=$("$here/scripts/package.sh" --yes)
  arguments+=("$package")
fi
enter_namespaces "${arguments[@]}"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/moex-package.XXXXXX")
chmod 755 "$work"
trap 'leave_root "$work" "$keep"' EXIT
trap 'exit 130' INT TERM HUP
mount -t proc proc /proc
root=$work/installed image=$work/image log=$work/log
inside() { (enter_root "$root" DEBIAN_FRONTEND=noninteractive -- "$@"); }
quietly() { "$@" > "$log" 2>&1 || { tail -40 "$log" >&2; fail "this failed (above): $*"; }; }

# Every file that is no log, cache or record of apt and dpkg.
files() {
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./tmp -o -path ./run \
    -o -path ./root -o -path ./opt -o -path ./var/lib/dpkg -o -path ./var/lib/apt -o -path ./var/cache \
    -o -path ./var/log \) -prune \
    -o -print) | sort
}
left() { comm -13 "$work/before" <(files); }

# One chat through the hub whose output goes to $log, then its end.
chat() {   # chat HOW URL
  local answer
  answer=$(curl -sS --max-time 120 "$2/v1/chat/completions" -H 'Content-Type: application/json' \
    -d '{"model": "moex-demo", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 16}')
  grep -q '"finish_reason":"length"' <<< "$answer" || { cat "$log" >&2; fail "$1: no whole answer: $answer"; }
  [ "$(curl -sS "$2/" | grep -c '<title')" = 1 ] || fail "$1: no chat page"
  say "$1: a chat and its page are served"
}
wait_for() {   # wait_for ID WORDS
  until grep -q "$2" "$log"; do
    kill -0 "$1" 2> /dev/null || { cat "$log" >&2; fail "it ended before \"$2\" (above)"; }
    sleep 0.2
  done
}

serve_under_launcher() {
  local id url code=0
  "$here/tests/support/syscall_numbers.sh" g++ > "$work/syscall_numbers.inc"
  quietly g++ -std=c++20 -O1 -static-libstdc++ -I "$work" "$here/tests/support/unit_launcher.cpp" \
    -o "$root/opt/launcher"
  cp "$here/tests/support/syscall_groups.txt" "$root/opt/groups"
  : > "$log"
  (enter_root "$root" -- /opt/launcher --groups /opt/groups --kill /lib/systemd/system/moex-hub.service) \
    > "$log" 2>&1 & id=$!
  wait_for "$id" 'notify: READY=1'
  wait_for "$id" 'notify: WATCHDOG=1'
  sed -n 's/^launcher: /check_package: launcher: /p' "$log"
  url=$(sed -n 's/^ready: url=\([^ ]*\).*/\1/p' "$log")
  chat "systemd is not process 1 here; under the unit's limits" "$url"
  kill -TERM "$id"
  wait "$id" || code=$?
  [ "$code" = 0 ] || { cat "$log" >&2; fail "it ended with $code, want 0"; }
  grep -q 'notify: STOPPING=1' "$log" || fail "it did not say that it stops"
}

# The unit's settings as properties of a unit that lasts as long as this script, with the root before its paths.
serve_under_systemd() {
  local line properties=()
  while IFS= read -r line; do properties+=(-p "$line"); done < <(
    sed -n '/^\[Service\]/,/^\[Install\]/p' "$root/lib/systemd/system/moex-hub.service" \
      | grep -E '^[A-Z]' | grep -vE '^(Exec|Restart)')
  quietly systemd-run --unit=moex-package-check --collect -p RootDirectory="$root" "${properties[@]}" \
    /usr/bin/moex-hub serve --config /etc/moex/hub.toml
  chat "under systemd" http://127.0.0.1:8080
  systemctl stop moex-package-check
}

# Run by unshare in the place of process 1: an overlay of the root becomes the root, so that what systemd writes down is
# gone with it. No chroot: from inside one nobody may make the unit's user namespace.
# shellcheck disable=SC2016  # its arguments are the inner shell's
begin_systemd='
  set -euo pipefail
  mount -t tmpfs tmpfs "$2"
  mkdir "$2/upper" "$2/work" "$2/root"
  mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
  cd "$2/root"
  rm -rf var/lib/moex var/lib/private    # what the launcher left; an overlay moves no folder to where systemd wants it
  mount -t proc proc proc
  mount -t sysfs sysfs sys
  mount -t cgroup2 cgroup2 sys/fs/cgroup
  mount --rbind --make-rslave /dev dev
  mount -t tmpfs tmpfs run
  printf "[Unit]\nDefaultDependencies=no\nRequires=moex-hub.service\n" > etc/systemd/system/moex-check.target
  mkdir run/before
  pivot_root . run/before
  umount --lazy /run/before
  exec env -i container=moex-check PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=moex-check.target --show-status=0 < /dev/null'

serve_under_own_systemd() {
  local id first='' restarts group=$work/cgroup/moex-check.$$
  mkdir -p "$work/cgroup" "$work/systemd"
  if ! mount -t cgroup2 cgroup2 "$work/cgroup" 2> "$log" || ! mkdir "$group" 2> "$log"; then
    say "systemd cannot be process 1 of a namespace here: $(tail -1 "$log")"
    return
  fi
  : > "$log"
  (echo "$BASHPID" > "$group/cgroup.procs"
    exec unshare --mount --pid --fork --kill-child --uts --ipc --cgroup --propagation private \
      bash -c "$begin_systemd" begin "$root" "$work/systemd") > "$log" 2>&1 & id=$!
  until [ -n "$first" ]; do
    kill -0 "$id" 2> /dev/null || { cat "$log" >&2; fail "systemd did not begin (above)"; }
    first=$(pgrep -P "$id" -f '^/lib/systemd/systemd') || sleep 0.2
  done

  in_it() { timeout 60 nsenter --target "$first" --mount --pid --uts --ipc --cgroup -- "$@"; }
  until in_it systemctl is-active --quiet moex-hub 2> /dev/null; do
    restarts=$(in_it systemctl show moex-hub -p NRestarts --value 2> /dev/null || true)
    if ! kill -0 "$id" 2> /dev/null || [ "${restarts:-0}" -gt 0 ]; then
      in_it journalctl --no-pager -u moex-hub >&2 || true
      fail "systemd could not start the hub (above)"
    fi
    sleep 0.2
  done
  chat "under systemd as process 1 of a namespace" http://127.0.0.1:8080
  say "it runs as $(in_it systemctl show moex-hub -p DynamicUser,PrivateUsers,ProtectSystem,MemoryDenyWriteExecute \
    | tr '\n' ' ')"
  quietly in_it systemctl stop moex-hub
  [ "$(in_it systemctl show moex-hub -p Result --value)" = success ] || fail "systemd did not see it end well"
  kill -KILL "$first"
  wait "$id" 2> /dev/null || true
  find "$group" -depth -type d -exec rmdir {} + 2> /dev/null || true
  umount "$work/cgroup"
}

try_package() {
  local depends
  make_bare_root "$root" "$suite"
  depends=$(dpkg-deb -f "$package" Depends)
  say "installing what it depends on, and systemd"
  quietly inside apt-get update -q
  quietly inside apt-get satisfy -y -q --no-install-recommends "$depends" systemd
  if inside apt-get download -q prometheus > "$log" 2>&1; then mv "$root"/prometheus_*.deb "$work/"; fi
  files > "$work/before"
  cp "$package" "$root/opt/moex.deb"
  quietly inside dpkg --install /opt/moex.deb
  say "installed: $(left | wc -l) files and folders"
  [ -L "$root/etc/systemd/system/multi-user.target.wants/moex-hub.service" ] || fail "the hub does not start at boot"

  local unit
  for unit in moex-hub moex-worker; do
    quietly inside systemd-analyze verify --man=no "/lib/systemd/system/$unit.service"
    say "$unit.service: exposure $(inside systemd-analyze security --offline=true --no-pager \
      "/lib/systemd/system/$unit.service" 2> /dev/null | sed -n 's/.*: \([0-9.]*\) .*/\1/p' | tail -1)"
  done
  inside moex-worker --version | sed 's/^/check_package: /'
  inside moex-hub doctor --config /etc/moex/hub.toml > "$log" || { cat "$log" >&2; fail "doctor finds faults (above)"; }
  say "doctor: $(tail -1 "$log")"
  if [ -d /run/systemd/system ]; then serve_under_systemd; else serve_under_launcher; serve_under_own_systemd; fi

  say "removal"
  quietly inside dpkg --remove moex
  local rest state='var/lib/(private(/moex(/.*)?)?|moex(/.*)?)'
  rest=$(left | grep -vE "^\./(etc/moex(/(hub\.toml|worker\.env))?|$state)\$") || true
  [ -z "$rest" ] || fail "removal left more than settings and state: $rest"
  quietly inside dpkg --purge moex
  rest=$(left | grep -vE "^\./$state\$") || true
  [ -z "$rest" ] || fail "purge left more than state: $rest"
  say "left: $(left | tr '\n' ' ')"
}

check_rules() {
  local found=("$work"/prometheus_*.deb)
  [ -e "${found[0]}" ] || { say "no prometheus package to be had: the alert rules are not looked at"; return; }
  dpkg-deb -x "${found[0]}" "$work/prometheus"
  "$work/prometheus/usr/bin/promtool" check rules "$here/scripts/host/alerts.yml" > "$log" || { cat "$log"; return 1; }
  say "promtool: $(sed -n 's/^ *SUCCESS: //p' "$log")"
}

# A line of the Containerfile: COPY and RUN happen; USER, ENTRYPOINT and CMD become the command that is tried last.
try_containerfile() {
  root=$image
  make_bare_root "$root" "$suite"
  local steps word rest user=root command=() id url
  mapfile -t steps < <(sed -e '/^#/d' "$here/scripts/host/Containerfile" | sed -e ':join' -e '/\\$/{N;s/\\\n//;b join}')
  for step in "${steps[@]}"; do
    word=${step%% *} rest=${step#* }
    case "$word" in
      COPY) cp "$package" "$root/tmp/" ;;
      RUN) quietly inside /bin/sh -c "$rest" ;;
      USER) user=$rest ;;
      ENTRYPOINT|CMD) mapfile -t -O "${#command[@]}" command < <(grep -o '"[^"]*"' <<< "$rest" | tr -d '"') ;;
    esac
  done
  : > "$log"
  (enter_root "$root" -- setpriv --reuid "$user" --regid "$user" --clear-groups "${command[@]/:8080/:0}") \
    > "$log" 2>&1 & id=$!
  wait_for "$id" '^ready: '
  url=$(sed -n 's/^ready: url=\([^ ]*\).*/\1/p' "$log")
  curl -sS --fail -o /dev/null "http://127.0.0.1:${url##*:}/health" || fail "the container's hub is not well"
  kill -TERM "$id"
  wait "$id" || fail "the container's command ended with $?"
  say "the Containerfile's steps make a root whose hub serves; the image itself was not built"
}

try_package
check_rules
try_containerfile
say "green: $(basename "$package")"
