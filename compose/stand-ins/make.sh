#!/bin/bash
# Images under the names of the pinned ones, for a machine that can reach package mirrors and no image registry: Debian by
# debootstrap, Kafka from the jars that txlayer has locked, Prometheus from Debian's package. For trying the files, not for running
# a service. As root:   make.sh [options of docker build, such as --network host]
# Needs debootstrap, a running Docker engine and `txlayer broker fetch` (the jars are taken from $TXLAYER_HOME, else ~/.cache/txlayer).
set -euo pipefail
cd "$(dirname "$0")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DOCKER_BUILDKIT=1

debootstrap --variant=minbase bookworm "$folder/debian"
# As in the real one: no manuals, no packages kept.
printf 'path-exclude /usr/share/%s/*\n' doc man locale > "$folder/debian/etc/dpkg/dpkg.cfg.d/slim"
echo 'APT::Keep-Downloaded-Packages "false"; Dir::Cache::pkgcache ""; Dir::Cache::srcpkgcache "";' \
    > "$folder/debian/etc/apt/apt.conf.d/slim"
rm -rf "$folder"/debian/{var/cache/apt/archives/*.deb,var/lib/apt/lists/*,usr/share/{doc,man,locale}/*}
tar --directory "$folder/debian" --create . | docker import --change 'CMD ["bash"]' - debian:12.12-slim

cp -r kafka "$folder/kafka"
cp -r "${TXLAYER_HOME:-$HOME/.cache/txlayer}"/jars/kafka-4.3.0-* "$folder/kafka/libs"
docker build "$@" --tag apache/kafka:4.3.0 "$folder/kafka"
docker build "$@" --tag prom/prometheus:v2.53.4 - < prometheus.Dockerfile
