#!/bin/sh
# Installs the newest release of downshift, or the one that DOWNSHIFT_VERSION names, for this user:
#
#   curl --proto '=https' --tlsv1.2 -LsSf @REPOSITORY@/releases/latest/download/install.sh | sh
#
# DOWNSHIFT_BIN is the folder of the program (~/.local/bin by default). DOWNSHIFT_RELEASES is another place of the releases.
# Nothing is installed unless the checksum of the archive is the one in SHA256SUMS.
set -eu

repository='@REPOSITORY@'
version=${DOWNSHIFT_VERSION:-@VERSION@}
releases=${DOWNSHIFT_RELEASES:-$repository/releases/download}
bin=${DOWNSHIFT_BIN:-$HOME/.local/bin}

fail() {
  echo "downshift: $*" >&2
  exit 1
}

# fetch ADDRESS FILE
fetch() {
  if command -v curl >/dev/null; then
    curl --location --silent --show-error --fail --output "$2" "$1"
  elif command -v wget >/dev/null; then
    wget --quiet --output-document="$2" "$1"
  else
    fail 'needs curl or wget: install one of them'
  fi || fail "cannot load $1"
}

# Everything is in a function, so that a download that breaks off runs nothing.
install_release() {
  [ "$(uname -s)" = Linux ] || fail 'runs on Linux; on Windows, use WSL2'
  case $(uname -m) in
    x86_64 | amd64) target=x86_64-unknown-linux-gnu ;;
    aarch64 | arm64) target=aarch64-unknown-linux-gnu ;;
    *) fail "no release for $(uname -m): build it, with \`cargo install downshift\`" ;;
  esac
  # musl has no such file: a program for glibc would fail with "not found".
  ldd --version 2>&1 | grep -qi musl && fail "no release for musl: build it, with \`cargo install downshift\`"

  name=downshift-$version-$target
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  fetch "$releases/v$version/$name.tar.gz" "$folder/$name.tar.gz"
  fetch "$releases/v$version/SHA256SUMS" "$folder/SHA256SUMS"
  (
    cd "$folder"
    grep "  $name.tar.gz\$" SHA256SUMS > sum || fail "SHA256SUMS of $version does not name $name.tar.gz"
    sha256sum --check --status sum || fail "$name.tar.gz has another checksum than SHA256SUMS says: nothing was installed"
    tar -xzf "$name.tar.gz"
  )
  mkdir -p "$bin"
  # Renamed into place: a downshift that runs keeps its file.
  cp "$folder/$name/downshift" "$bin/.downshift-new"
  chmod 755 "$bin/.downshift-new"
  mv "$bin/.downshift-new" "$bin/downshift"
  echo "installed $bin/downshift $version"
  case :$PATH: in
    *":$bin:"*) ;;
    *) echo "add it to your PATH: export PATH=\"$bin:\$PATH\"" ;;
  esac
}

install_release
