# answerd with Python and uv, for MCP servers that uvx starts.
# docker build -t answerd . && docker build -t answerd-python -f deploy/docker/python.Dockerfile .
FROM python:3.13-slim-bookworm
RUN pip install --no-cache-dir uv && useradd --create-home answerd
COPY --from=answerd /answerd /answerd
COPY --from=answerd /licences /licences
# As in the image of answerd: a volume that its user can write, another PORT of a platform, and the probe.
COPY --from=answerd --chown=answerd:answerd /data /data
ENV PORT=8080
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/answerd", "health"]
USER answerd
ENTRYPOINT ["/answerd"]
