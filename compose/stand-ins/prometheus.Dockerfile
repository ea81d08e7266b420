# Debian's Prometheus, laid out as in the real image.
FROM debian:12.12-slim
# hadolint ignore=DL3008
RUN --mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/90-build \
    apt-get update \
    && apt-get install --yes --no-install-recommends prometheus \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* \
    && install -d -o nobody /prometheus
USER 65534
WORKDIR /prometheus
ENTRYPOINT ["/usr/bin/prometheus"]
CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
