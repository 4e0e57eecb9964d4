# The README's first command in a container. Not built yet: no container engine was at hand (docs/compatibility.md).
#   docker build -t fedapp .
#   docker run --rm --shm-size 2g fedapp
#   docker run --rm --shm-size 2g fedapp fedapp run -c 'algorithm="fedcomgate"'
FROM python:3.11-slim
RUN useradd --create-home --uid 1000 flower
WORKDIR /home/flower/fedapp
COPY pyproject.toml README.md LICENSE ./
COPY fedapp fedapp
COPY strategies strategies
COPY clients clients
RUN pip install --no-cache-dir -e . && chown -R flower /home/flower
USER flower
# Flower would install PyTorch again for every run; it is here already.
ENV FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
CMD ["flwr", "run", ".", "--stream"]
