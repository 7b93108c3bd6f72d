#!/usr/bin/env bash
# Makes a Debian package of what is here: the hub with its pages and the demo model, the worker, their manual, bash
# completion, systemd units, sample settings, a Grafana board and alert rules.
#   usage: scripts/package.sh [--yes] [--no-build] [--out DIR]
#     --yes       do not ask before installing packages
#     --no-build  take what is built already
#     --out DIR   where moex_VERSION_ARCHITECTURE.deb goes                                          [the build folder]
#   example: scripts/package.sh && sudo apt-get install ./build/moex_*.deb
# MOEX_BUILD: build folder [build]. The last line printed is the package's path. The same commit, built with the same
# programs, gives the same bytes. scripts/check_package.sh tries the package in a bare root.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
build=${MOEX_BUILD:-$here/build}
yes=() no_build=0 out=
while [ $# -gt 0 ]; do
  case "$1" in
    --yes) yes=(--yes) ;;
    --no-build) no_build=1 ;;
    --out) out=${2:?a folder}; shift ;;
    -h|--help) sed -n '2,10p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "package.sh: unknown argument $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done
out=${out:-$build}
fail() { echo "package.sh: $*" >&2; exit 1; }

if [ "$no_build" = 0 ]; then
  "$here/scripts/setup.sh" --for package "${yes[@]}"
  MOEX_BUILD=$build "$here/scripts/build.sh" --worker moex-hub moex-worker
fi
for program in moex-hub moex-worker; do
  [ -x "$build/$program" ] || fail "$build/$program is not built"
done
[ -s "$build/web/wasm/moex-worker.wasm" ] || fail "the tab's part is not built: a hub without it could not be joined"
command -v dpkg-shlibdeps > /dev/null || fail "dpkg-shlibdeps is missing: apt-get install dpkg-dev"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/moex
# What a package says of time is the commit's, not this minute's.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$here" log -1 --format=%ct 2> /dev/null || date +%s)}
export SOURCE_DATE_EPOCH
version=$("$build/moex-hub" --version | sed 's/^moex-hub //')
architecture=$(dpkg --print-architecture)

put() { install -D -m "$1" "$2" "$root/$3"; }   # put MODE FILE PLACE
squeeze() { gzip -9 -n -c > "$work/squeezed"; put 644 "$work/squeezed" "$1"; }   # squeeze PLACE < text

for program in moex-hub moex-worker; do
  put 755 "$build/$program" "usr/bin/$program"
  strip --strip-unneeded "$root/usr/bin/$program"
  put 644 "$here/scripts/host/$program.service" "lib/systemd/system/$program.service"
done
(cd "$here/static/models/demo" && find . -type f -print0) | while IFS= read -r -d '' file; do
  put 644 "$here/static/models/demo/$file" "usr/share/moex/models/demo/$file"
done

node "$here/scripts/host/man_pages.mjs" "$build" "$work/man" "$(date -u -d "@$SOURCE_DATE_EPOCH" +%F)"
for page in "$work"/man/*.1; do squeeze "usr/share/man/man1/$(basename "$page").gz" < "$page"; done
"$build/moex-hub" completion bash > "$work/completion"
put 644 "$work/completion" usr/share/bash-completion/completions/moex-hub

put 644 "$here/scripts/host/hub.toml" etc/moex/hub.toml
put 600 "$here/scripts/host/worker.env" etc/moex/worker.env
for file in grafana.json alerts.yml Containerfile; do
  put 644 "$here/scripts/host/$file" "usr/share/doc/moex/$file"
done
put 644 "$here/README.md" usr/share/doc/moex/README.md
squeeze usr/share/doc/moex/changelog.gz < "$here/.github/CHANGELOG.md"
{
  cat "$here/LICENSE"
  for library in "$build"/npm-pages/node_modules/{marked,dompurify,uplot,@highlightjs/cdn-assets,katex}; do
    printf '\n\n--- %s, part of the pages ---\n\n' "${library##*/node_modules/}"
    cat "$library"/LICENSE*
  done
} > "$work/copyright"
put 644 "$work/copyright" usr/share/doc/moex/copyright

# The libraries' packages, as dpkg-shlibdeps finds them by the symbols that the programs use.
mkdir -p "$work/shlibdeps/debian"
printf 'Source: moex\n\nPackage: moex\nArchitecture: any\n' > "$work/shlibdeps/debian/control"
depends=$(cd "$work/shlibdeps" \
  && dpkg-shlibdeps -O "$root/usr/bin/moex-hub" "$root/usr/bin/moex-worker" 2> "$work/said" \
  | sed -n 's/^shlibs:Depends=//p') || { cat "$work/said" >&2; exit 1; }
[ -n "$depends" ] || fail "dpkg-shlibdeps found no library"

mkdir -p "$root/DEBIAN"
cat > "$root/DEBIAN/control" <<END
Package: moex
Version: $version
Architecture: $architecture
Maintainer: The authors of MoEx <root@localhost>
Installed-Size: $(du -k -s --apparent-size "$root" | cut -f1)
Depends: $depends
Recommends: ca-certificates
Suggests: mesa-vulkan-drivers, prometheus, grafana
Section: net
Priority: optional
Description: serves Mixture-of-Experts models whose experts run in browsers
 A hub runs the small part of a large language model that every token needs; the
 experts run on the GPUs of browser tabs that people open by a link, or of native
 workers. Apps see an OpenAI-compatible API. With a chat page and a demo model.
END
printf '/etc/moex/%s\n' hub.toml worker.env > "$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do put 755 "$here/scripts/host/debian/$script" "DEBIAN/$script"; done
(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) > "$work/md5sums"
put 644 "$work/md5sums" DEBIAN/md5sums

find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
mkdir -p "$out"
package=$out/moex_${version}_$architecture.deb
# Weights are as good as random bytes: xz would take a minute to save a hundredth.
dpkg-deb --root-owner-group -Zgzip --build "$root" "$package" > /dev/null
echo "package.sh: $(du -h --apparent-size "$package" | cut -f1), depends on $depends" >&2
echo "$package"
