#!/usr/bin/env bash
# Runs the demo as on an aarch64 machine: `make emulate-arm`, on Debian, with qemu-user.
#
# Fetches Debian's Python and the package's dependencies for aarch64 into a folder (the first
# argument), which a second run uses again. Nothing of the system is changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(realpath -m "${1:-build/aarch64}")
qemu=$(command -v qemu-aarch64) || { echo "qemu-aarch64 is not there; on Debian: apt-get install qemu-user" >&2; exit 1; }
command -v dpkg apt-get >/dev/null || { echo "this takes Debian's dpkg and apt-get" >&2; exit 1; }

if [ ! -e "$folder/root/.complete" ]; then
  mkdir -p "$folder"/{state/lists/partial,cache/archives/partial,root}
  : > "$folder/status"
  apt=(apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$folder/state"
    -o Dir::State::status="$folder/status" -o Dir::Cache="$folder/cache" -o APT::Sandbox::User=
    -o APT::Install-Recommends=false -o Debug::NoLocking=true)
  "${apt[@]}" update
  "${apt[@]}" install --download-only python3 libstdc++6
  for package in "$folder"/cache/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
  touch "$folder/root/.complete"
fi
executable=$(ls "$folder"/root/usr/bin/python3.[0-9]* | head -n 1)
run=(env JAX_PLATFORMS=cpu PYTHONPATH="$folder/site:$PWD" "$qemu" -L "$folder/root" "$executable")

if [ ! -e "$folder/site/.complete" ]; then
  version=${executable##*python}
  platforms=()
  for glibc in 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_aarch64"); done
  mapfile -t needed < <("${PYTHON:-python3}" -c '
import pathlib, tomllib
print(*tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["dependencies"], sep="\n")')
  "${PYTHON:-python3}" -m pip install --quiet --upgrade --target "$folder/site" "${platforms[@]}" --platform manylinux2014_aarch64 \
    --python-version "$version" --implementation cp --only-binary=:all: "${needed[@]}"
  touch "$folder/site/.complete"
fi

printed=$("${run[@]}" -m jaxdelegate demo --size=64 --width=0.25 --num_runs=1)
echo "$printed" | tail -n 5
grep -q "^outputs agree" <<< "$printed"
grep -q "^Native kernels: none, XLA computes all: libjaxdelegate_kernels.so is for x86-64 processors, and this is aarch64.$" <<< "$printed"
echo "aarch64: demo passed"
