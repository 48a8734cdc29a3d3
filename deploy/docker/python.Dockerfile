# answerd with Python and uv, for MCP servers that uvx starts.
# docker build -t answerd . && docker build -t answerd-python -f deploy/docker/python.Dockerfile .
FROM python:3.13-slim-bookworm
RUN pip install --no-cache-dir uv && useradd --create-home answerd
COPY --from=answerd /answerd /answerd
COPY --from=answerd /licences /licences
ENV ADDR=0.0.0.0:8080
USER answerd
ENTRYPOINT ["/answerd"]
