#!/usr/bin/env bash
# Runs a shell command in a copy of this checkout and its wheels, with a newer Python: `make newest-python`.
#
# usage: newest_python.sh COMMAND
#
# The Python is the newest one that is installed, if it is newer than python3. Otherwise it is that of
# a Debian release (SUITE, trixie by default) in a folder (ROOT), which takes root that may mount, and
# debootstrap.
# Nothing of the system is changed, and mounts end with this process. Without either, the script says
# that it skipped the command, and succeeds.
set -euo pipefail
top=$(realpath "$(dirname "$0")/..")
suite=${SUITE:-trixie}
root=$(realpath -m "${ROOT:-$top/build/newest-python/$suite}")

copy_to() {  # files as they are now, with a commit for `git log`; what was built there stays
  git init --quiet "$1"
  git -C "$1" fetch --quiet --depth=1 "file://$top" HEAD
  git -C "$1" reset --quiet --hard FETCH_HEAD
  git -C "$1" clean --quiet --force -d
  git -C "$top" ls-files -z --cached --others --exclude-standard |
    tar --create --directory="$top" --null --files-from=- --ignore-failed-read 2>/dev/null | tar --extract --directory="$1"
  rm -rf "$1/dist"
  if [ -d "$top/dist" ]; then cp -r "$top/dist" "$1/dist"; fi
}

can_make_root() {  # containers may not let root mount
  [ "$(id -u)" = 0 ] && unshare --mount true || return 1
  command -v debootstrap || { apt-get -q update && apt-get -q -y install debootstrap; }
} >/dev/null 2>&1

make_root() {
  local mirror
  mirror=$(grep -rhoE -m1 'https?://[^ ]*/debian/?( |$)' /etc/apt/sources.list.d /etc/apt/sources.list 2>/dev/null | head -n 1 || true)
  mkdir -p "$root"
  # The script of all newer releases, which this debootstrap may not know by name.
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,g++,make,git \
    "$suite" "$root" "${mirror:-http://deb.debian.org/debian}" /usr/share/debootstrap/scripts/sid >"$root.log" 2>&1 || { tail -n 5 "$root.log" >&2; return 1; }
  for file in /etc/pip.conf /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    if [ -e "$file" ]; then cp --dereference "$file" "$root$file"; fi
  done
  touch "$root/.complete"
}

run_in_root() {
  if [ ! -e "$root/.complete" ]; then make_root; fi
  mkdir -p "$root/src/shared"
  copy_to "$root/src/project"
  unshare --mount bash -euc '
    for folder in proc dev sys; do mount --rbind "/$folder" "$1/$folder"; done
    if [ -d "$2" ]; then mount --bind --options=ro "$2" "$1/src/shared"; fi
    exec chroot "$1" env HOME=/root PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin bash -c "cd /src/project && $3"
  ' newest_python.sh "$root" "$top/../shared" "$1"
}

run_with() {
  local folder=$top/build/newest-python/$1
  mkdir -p "$folder"
  copy_to "$folder/project"
  ln -sfn "$top/../shared" "$folder/shared"
  (cd "$folder/project" && PYTHON=$1 bash -c "$2")
}

here=$(python3 -c 'import sys; print(sys.version_info[1])')
for minor in 14 13 12; do
  # Not `command -v`: pyenv has commands for versions that are not active.
  if [ "$minor" -gt "$here" ] && "python3.$minor" -m venv --help >/dev/null 2>&1; then
    echo "with $("python3.$minor" --version): $1"
    run_with "python3.$minor" "$1"
    exit
  fi
done
if can_make_root; then
  echo "with the Python of Debian's $suite: $1"
  run_in_root "$1"
  exit
fi
echo "SKIPPED: with a newer Python than 3.$here: $1: none is installed, and Debian's takes root that may mount, and debootstrap" >&2
