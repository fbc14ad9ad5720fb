#!/usr/bin/env bash
# The demo on a machine that has nothing installed: a Debian 12 in a folder of its own, made by debootstrap, with make,
# the files of this tree's last commit, and this machine's way to package indexes. First as it is, then without any
# network. As root. With --short only what set-up asks for of a user who may not install, where dpkg knows no package.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ${BARE_MOUNTS:-} != own ]]; then # nothing that is mounted here is seen outside, nor outlives it
  BARE_MOUNTS=own exec unshare --mount --pid --fork --kill-child "$0" "$@"
fi
folder=$(mktemp -d) root=$folder/debian
mounts=("$root/proc" "$root/dev")
trap 'umount -R -l "${mounts[@]}" 2>"$folder/log" || true; rm -rf --one-file-system "$folder"' EXIT
chmod 755 "$folder"

if [[ ${1:-} == --short ]]; then
  cp -r tools "$folder/"
  mount --bind /dev/null /var/lib/dpkg/status
  ! said=$(setpriv --reuid=nobody "$folder/tools/setup.sh" 2>&1) || { echo "bare: nothing is missing: $said" >&2 && exit 1; }
  for package in $(grep -v '^#' tools/packages.txt); do
    [[ "$said " == *"apt-get install"*" $package "* ]] || { echo "bare: $package is not asked for: $said" >&2 && exit 1; }
  done
  exit
fi

timed() { # WHAT COMMAND …
  local begin=$SECONDS
  "${@:2}"
  echo "seen: $1: $((SECONDS - begin)) s"
}
way=()
inside() { chroot "$root" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "${way[@]}" sh -c "cd /shoal && $1"; }

archive=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' | awk '$1 == "bookworm" { print $2; exit }')
[[ $archive ]] || { echo "bare: apt knows no archive of Debian 12: apt-get update" >&2 && exit 1; }
make_debian() {
  debootstrap --variant=minbase --include=make,ca-certificates bookworm "$root" "$archive" \
    >"$folder/log" 2>&1 || { tail -n 20 "$folder/log" >&2 && exit 1; }
}
timed "a Debian 12" make_debian
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir "$root/shoal"
git archive HEAD | tar -x -C "$root/shoal"
echo "bare: $(chroot "$root" dpkg-query -W -f '.\n' | wc -l) packages, no compiler and no Python"

# Names, certificates and indexes are this machine's. Its own certificates are links to where this machine has some too.
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
rm -r "$root/etc/ssl/certs"
cp -rL /etc/ssl/certs "$root/etc/ssl/"
cp -r /etc/apt/sources.list.d "$root/etc/apt/" && : >"$root/etc/apt/sources.list"
# pip's settings, and folders of this machine that these name: an index may be files, beside the folder of its pages.
settings=(/etc/pip.conf /etc/xdg/pip/pip.conf /etc/xdg/pip/constraints.txt ~/.config/pip/pip.conf ~/.pip/pip.conf)
for file in "${settings[@]}"; do
  ! [[ -e $file ]] || install -D -m 644 "$file" "$root/${file/#$HOME/root}"
done
while read -r place; do
  place=${place#file://}
  place=${place%/simple}
  [[ -d $place && ! -e $root$place ]] || continue
  mkdir -p "$root$place"
  mount --bind -o ro "$place" "$root$place"
  mounts+=("$root$place")
done < <({ cat "${settings[@]}" 2>/dev/null; env | grep ^PIP_; } | grep -oE '(file://)?/[^ ]+')
while read -r line; do way+=("$line"); done < <(env | grep -E '^(PIP_|SSL_CERT|https?_proxy=|no_proxy=)')
timed "make demo" inside "make demo"
echo "bare: again, without a network"
timed "make demo" unshare --net bash -c "$(declare -f inside); $(declare -p way root); inside 'make demo'"
