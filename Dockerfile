# The HTTP service with torch for the CPU. Guard, network and weights are read from /data:
#   docker build -t flatfold-serve .
#   docker run --rm -p 127.0.0.1:8000:8000 -e FLATFOLD_TOKEN -v "$PWD":/data:ro flatfold-serve \
#     guard.safetensors --model nets:resnet20 --weights resnet20.safetensors
# Without a token in FLATFOLD_TOKEN it does not start, unless --no-token is added. A network that needs more packages:
#   docker build --build-arg EXTRAS=onnx,serve,hf -t flatfold-serve .
FROM python:3.11-slim AS build

ARG EXTRAS=onnx,serve
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python -m venv /opt/flatfold
COPY constraints.txt ./
RUN /opt/flatfold/bin/pip install -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu torch
COPY hatch_build.py pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/flatfold/bin/pip install -c constraints.txt ".[$EXTRAS]"

FROM python:3.11-slim

COPY --from=build /opt/flatfold /opt/flatfold
RUN useradd --uid 10001 --create-home flatfold
# The network uses the cores that are free at the start, within the CPU limit of the container; OMP_NUM_THREADS fixes
# their number. numpy would start a thread for each core of the machine, and the service has no use for them.
ENV PATH=/opt/flatfold/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OPENBLAS_NUM_THREADS=1
USER 10001
WORKDIR /data
EXPOSE 8000
# The port is the last one on the command line of the service, so --port may be added.
HEALTHCHECK --interval=30s --timeout=5s --start-period=2m --retries=3 CMD ["python", "-c", "import re; from urllib.request import urlopen; ports = re.findall(r'--port[=\\x00](\\d+)', open('/proc/1/cmdline').read()); urlopen(f'http://127.0.0.1:{ports[-1]}/healthz', timeout=4)"]
ENTRYPOINT ["flatfold", "serve", "--host", "0.0.0.0", "--port", "8000"]
