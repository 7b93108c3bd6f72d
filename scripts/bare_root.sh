# shellcheck shell=bash
# Functions for scripts that try things in a bare Debian root (check_fresh.sh, check_package.sh): sourced, not run.
# Before them $0's own `fail` and `say`; mounts and processes live in namespaces of their own, so that whatever ends the
# script ends them, too.

# need_tools TOOL...: root's rights, and programs by name.
need_tools() {
  local tool
  [ "$(id -u)" = 0 ] || fail "a root of one's own needs root: run it with sudo"
  for tool in mmdebstrap unshare chroot "$@"; do
    command -v "$tool" > /dev/null \
      || fail "$tool is missing: apt-get install mmdebstrap git curl util-linux g++ dpkg-dev"
  done
}

# enter_namespaces ARGUMENT...: the script again, with a mount and a process namespace around it.
enter_namespaces() {
  [ -z "${MOEX_BARE_INSIDE:-}" ] || return 0
  exec env MOEX_BARE_INSIDE=1 unshare --mount --pid --fork --kill-child --propagation private "$0" "$@"
}

# leave_root FOLDER KEEP: ends what runs in the namespace, unmounts what lies under FOLDER and removes it.
leave_root() {
  trap '' INT TERM HUP
  kill -KILL -1 2> /dev/null || true        # of this namespace: what a command left running
  wait 2> /dev/null || true
  grep -o " ${1}[^ ]*" /proc/self/mounts | sort -r | xargs -r umount --lazy || true
  if [ "$2" = 1 ]; then say "kept: $1"; else rm -rf --one-file-system "$1"; fi
}

# make_bare_root ROOT SUITE: a minimal Debian at ROOT with this host's ways out, its log beside it.
make_bare_root() {
  local root=$1 suite=$2 source path sources=()
  for source in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -s "$source" ] && sources+=("$source")
  done
  say "making a bare $suite root"
  mmdebstrap --quiet --mode=root --variant=minbase "$suite" "$root" "${sources[@]}" > "$root.mmdebstrap" 2>&1 \
    || { tail -20 "$root.mmdebstrap" >&2; fail "mmdebstrap failed (above)"; }

  # Settings of apt that name proxies, mirrors or dates; certificates; npm's registry.
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
}

# enter_root ROOT [NAME=VALUE...] -- COMMAND...: in the place of this process, with a bare environment beside proxies
# and certificates.
enter_root() {
  local root=$1 name keep_env=()
  shift
  for name in http{,s}_proxy no_proxy HTTP{,S}_PROXY NO_PROXY NODE_EXTRA_CA_CERTS SSL_CERT_FILE SSL_CERT_DIR; do
    [ -z "${!name:-}" ] || keep_env+=("$name=${!name}")
  done
  while [ "$1" != -- ]; do keep_env+=("$1"); shift; done
  shift
  exec env -i "${keep_env[@]}" HOME=/root USER=root LANG=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@"
}
