# Two stages: the first has pip and a compiler's worth of wheels, the second only what runs.
FROM python:3.12-slim AS build
ENV PIP_NO_CACHE_DIR=1 UV_TORCH_BACKEND=cpu
WORKDIR /src
RUN python -m venv /venv && /venv/bin/pip install uv
COPY pyproject.toml README.md LICENSE train.py ./
COPY profiling profiling
COPY datasets datasets
COPY models models
COPY predictor predictor
COPY scheduling scheduling
COPY serving serving
RUN VIRTUAL_ENV=/venv /venv/bin/uv pip install --compile-bytecode '.[postgres]'

FROM python:3.12-slim
LABEL org.opencontainers.image.title="cotenant" org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin cotenant && install -d -o 10001 -g 10001 /data
COPY --from=build /venv /venv
# The root file system may be read-only: what is written goes to /data (the store) and /tmp (metrics, graphs).
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HOME=/tmp XDG_CACHE_HOME=/tmp/cache
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/v1/health/ready', timeout=4)"]
ENTRYPOINT ["cotenant"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080", "--workers", "2", "--database", "sqlite:////data/cotenant.db"]
