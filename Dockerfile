# A server of one queue space, with its console: see man/guide/containers.md.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY man man
COPY xaqueue xaqueue
RUN python -m venv /opt/xaqueue && /opt/xaqueue/bin/pip install --no-cache-dir '.[server,http]' 'psycopg[binary]>=3.2'

FROM python:3.13-slim
RUN useradd --system --uid 10001 --no-create-home xaqueue \
    && install -d -o xaqueue -g xaqueue -m 700 /var/lib/xaqueue /run/xaqueue
COPY --from=build /opt/xaqueue /opt/xaqueue
ENV PATH=/opt/xaqueue/bin:$PATH XAQUEUE_SPACE=/var/lib/xaqueue PYTHONUNBUFFERED=1
USER 10001
VOLUME ["/var/lib/xaqueue", "/run/xaqueue"]
EXPOSE 8000
# SIGTERM reaches the server itself: it rolls back what is active and closes the space.
CMD ["xaqueue", "serve", "--unix", "/run/xaqueue/socket", "--http", "0.0.0.0:8000", "--insecure"]
# Whether the process lives. What needs a person, or a worker, is no reason to kill it: that is `xaqueue health`.
HEALTHCHECK --start-period=30s --interval=10s --timeout=5s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/livez', timeout=4)"]
