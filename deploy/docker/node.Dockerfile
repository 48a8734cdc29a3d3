# answerd with Node, for MCP servers that npx starts.
# docker build -t answerd . && docker build -t answerd-node -f deploy/docker/node.Dockerfile .
FROM node:22-bookworm-slim
COPY --from=answerd /answerd /answerd
COPY --from=answerd /licences /licences
ENV ADDR=0.0.0.0:8080
USER node
ENTRYPOINT ["/answerd"]
