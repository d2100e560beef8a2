# The first stage has pip and a compiler's worth of wheels, `runtime` only what runs; `mlflow` adds MLflow's server for compose.
# The base is pinned by the digest of its manifest list (all architectures); where it comes from: docs/operations.md, Deployment.
ARG PYTHON_IMAGE=python:3.12.14-slim-trixie@sha256:78387bc3881b8273120a12ebe6c1ab22b018ccc2c9adf565ae1ac9b536e184ea
FROM ${PYTHON_IMAGE} AS build
# `cpu`, or `auto` with requirements/cuda.txt for GPUs (the service itself needs none).
ARG TORCH_BACKEND=cpu
ENV PIP_NO_CACHE_DIR=1 UV_TORCH_BACKEND=${TORCH_BACKEND} VIRTUAL_ENV=/venv
WORKDIR /src
COPY requirements requirements
RUN python -m venv /tools && /tools/bin/pip install 'uv>=0.9' 'cyclonedx-bom>=7' && python -m venv --without-pip /venv \
 && /tools/bin/uv pip install --compile-bytecode --no-deps --require-hashes -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE train.py ./
COPY profiling profiling
COPY datasets datasets
COPY models models
COPY predictor predictor
COPY scheduling scheduling
COPY serving serving
RUN /tools/bin/uv pip install --compile-bytecode '.[postgres,kubernetes]' \
 && /tools/bin/cyclonedx-py environment /venv/bin/python --of JSON -o /venv/sbom.cdx.json

FROM build AS build-mlflow
RUN /tools/bin/uv pip install --compile-bytecode '.[postgres,mlflow]'

FROM ${PYTHON_IMAGE} AS base
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin cotenant && install -d -o 10001 -g 10001 /data
# The root file system may be read-only: what is written goes to /data (the store), /tmp (graphs) and /dev/shm (metrics).
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 HOME=/tmp XDG_CACHE_HOME=/tmp/cache
WORKDIR /data
VOLUME /data
STOPSIGNAL SIGTERM

FROM base AS mlflow
COPY --from=build-mlflow /venv /venv
USER 10001:10001
EXPOSE 5000
ENTRYPOINT ["mlflow"]

FROM base AS runtime
LABEL org.opencontainers.image.title="cotenant" org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /venv /venv
ENV COTENANT_DATABASE=sqlite:////data/cotenant.db
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/v1/health/ready', timeout=4)"]
ENTRYPOINT ["cotenant"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8080", "--workers", "2"]
