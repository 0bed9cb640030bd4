#!/bin/sh
# Makes a virtual environment of a Python for ARM (aarch64) that runs here: its bin/python is that Python in qemu.
#
#   environment.sh FOLDER
#
# Python and its libraries are Debian's packages, unpacked below FOLDER. Nothing is installed in the system, and root is
# not needed.
set -eu
folder=$(realpath "$1") system=$(realpath "$1")/system

qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || {
  echo "the NEON kernels are tested in qemu, which is not here; on Debian: apt-get install qemu-user-static" >&2
  exit 1
}
for compiler in aarch64-linux-gnu-gcc aarch64-linux-gnu-g++; do
  command -v $compiler > /dev/null || {
    echo "the NEON kernels are compiled by $compiler, which is not here; on Debian: apt-get install g++-aarch64-linux-gnu" >&2
    exit 1
  }
done
command -v apt-get dpkg-deb > /dev/null || {
  echo "a Python for ARM is taken from Debian's packages, but apt-get or dpkg-deb is not here" >&2
  exit 1
}
[ ! -x "$folder/bin/python" ] || exit 0

echo "fetching Python for ARM: some forty of Debian's packages, 16 MB" >&2
mkdir -p "$system/apt/lists/partial" "$system/apt/archives/partial" "$folder/bin"
: > "$system/apt/status" # no package is installed: all that Python needs is fetched
apt() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1 -o APT::Sandbox::User="" \
    -o Dir::State="$system/apt" -o Dir::State::status="$system/apt/status" -o Dir::Cache="$system/apt" "$@"
}
apt update
apt install --yes --download-only --no-install-recommends python3 libstdc++6 > /dev/null
for package in "$system"/apt/archives/*.deb; do dpkg-deb --extract "$package" "$system"; done
rm -r "$system/apt"

echo "home = $system/usr/bin" > "$folder/pyvenv.cfg"
cat > "$folder/python" << END
#!/bin/sh
exec "$qemu" -L "$system" -0 "\$0" "$system/usr/bin/python3" "\$@"
END
chmod +x "$folder/python"
mv "$folder/python" "$folder/bin/python" # last: what is interrupted is made again
