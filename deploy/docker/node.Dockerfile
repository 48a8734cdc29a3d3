# answerd with Node, for MCP servers that npx starts.
# docker build -t answerd . && docker build -t answerd-node -f deploy/docker/node.Dockerfile .
FROM node:22-bookworm-slim
COPY --from=answerd /answerd /answerd
COPY --from=answerd /licences /licences
# As in the image of answerd: a volume that its user can write, another PORT of a platform, and the probe.
COPY --from=answerd --chown=node:node /data /data
ENV PORT=8080
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/answerd", "health"]
USER node
ENTRYPOINT ["/answerd"]
