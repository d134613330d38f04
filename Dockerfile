# syntax=docker/dockerfile:1
# fedlsg in a container: two targets, for CPUs and for CUDA. Not built by CI and not built where it was written, because
# no Docker daemon is at hand there; checked with hadolint only. Report what fails.
#
#   docker build --target cpu  -t fedlsg:cpu .
#   docker build --target cuda -t fedlsg:cuda .
#   docker run --rm --shm-size=2g -v "$PWD/runs:/srv/fedlsg/runs" fedlsg:cpu run
#   docker run --rm --gpus all --shm-size=8g -v "$PWD/runs:/srv/fedlsg/runs" fedlsg:cuda run --device cuda
#
# --shm-size: Ray keeps its objects in shared memory. The folder that is mounted must be writable for user 1000.
# The image for CUDA needs a driver and the NVIDIA container toolkit on the host; torch brings the CUDA libraries.
ARG PYTHON=3.11

FROM python:${PYTHON}-slim-bookworm AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 OMP_NUM_THREADS=1
RUN useradd --create-home --uid 1000 fedlsg \
    && install --directory --owner fedlsg /srv/fedlsg/runs
COPY requirements-lock.txt /opt/requirements-lock.txt
WORKDIR /srv/fedlsg

FROM base AS cuda
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /opt/requirements-lock.txt \
        "$(ls /wheels/*.whl)[plots,attacks,tensorboard]"
USER 1000
ENTRYPOINT ["fedlsg"]

FROM base AS cpu
# torch for CPUs comes from an index of its own; the second line keeps it, and brings the rest from PyPI.
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu \
        "$(grep '^torch==' /opt/requirements-lock.txt)" \
    && pip install --no-cache-dir --constraint /opt/requirements-lock.txt \
        "$(ls /wheels/*.whl)[plots,attacks,tensorboard]"
USER 1000
ENTRYPOINT ["fedlsg"]
