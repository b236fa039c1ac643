#!/usr/bin/env bash
# Gives the tests prometheus and promtool: those installed, else Debian's package unpacked into .cache; needs no root.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=.cache/prometheus
if command -v prometheus >/dev/null && command -v promtool >/dev/null; then exit 0; fi
if [[ -x $folder/usr/bin/promtool ]]; then exit 0; fi
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
  echo "prometheus and promtool are not installed, and there is no apt-get to fetch them: their tests will be skipped"
  exit 0
fi
echo "unpacking Debian's prometheus into $folder (20 MB)"
mkdir -p "$folder"
cd "$folder"
if ! apt-get download -qq prometheus; then
  echo "no package lists: trying apt-get update, which needs root"
  if ! { apt-get update -qq && apt-get download -qq prometheus; }; then
    echo "Debian's prometheus can't be fetched: its tests will be skipped; install prometheus to run them"
    exit 0
  fi
fi
dpkg -x prometheus_*.deb .
rm prometheus_*.deb
