# jaxdelegate for NVIDIA GPUs; CUDA and cuDNN come as Python packages, the driver from the host.
#
#   docker build --target=run --tag=jaxdelegate .          # --build-arg EXTRA=cuda12 for CUDA 12
#   docker run --rm --gpus=all jaxdelegate demo
#   docker build --target=accept --tag=jaxdelegate-accept .
#   docker run --rm --gpus=all --volume="$PWD:/results" jaxdelegate-accept
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN JAXDELEGATE_REQUIRE_LIBRARIES=1 pip wheel --no-cache-dir --no-deps --wheel-dir=/wheels .

FROM python:${PYTHON}-slim-bookworm AS run
ARG EXTRA=cuda
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[${EXTRA}]"
# Provided by NVIDIA's container toolkit from the host: CUDA's driver and nvidia-smi.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --create-home user
USER user
WORKDIR /home/user
ENTRYPOINT ["jaxdelegate"]
CMD ["demo"]

# bench/accept_gpu.py: tests on the GPU, then benchmarks, with other engines if they are installed.
FROM run AS accept
USER root
RUN pip install --no-cache-dir "matplotlib>=3.9" "pytest>=8.2" && mkdir /results && chown user /results
WORKDIR /accept
COPY bench bench
COPY tests tests
COPY examples/sample_tasks examples/sample_tasks
ENV PYTHONPATH=/accept/examples
USER user
ENTRYPOINT ["python", "bench/accept_gpu.py", "--out=/results/accept_gpu.jsonl"]
CMD []
