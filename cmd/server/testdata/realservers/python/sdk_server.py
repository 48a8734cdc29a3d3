"""An MCP server written with the low-level API of the official Python SDK 2.

usage: sdk_server.py stdio | http PORT [stateless] [json]
"""

import asyncio
import sys

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TOOLS = [
    types.Tool(
        name="reverse",
        description="Reverse a text.",
        input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    ),
    types.Tool(
        name="area",
        description="Return the area of a rectangle as structured content.",
        input_schema={
            "type": "object",
            "properties": {"width": {"type": "number"}, "height": {"type": "number"}},
            "required": ["width", "height"],
        },
        output_schema={"type": "object", "properties": {"area": {"type": "number"}}, "required": ["area"]},
    ),
    types.Tool(
        name="confirm",
        description="Ask the user to confirm, with a multi round-trip request of protocol 2026-07-28.",
        input_schema={"type": "object", "properties": {}},
    ),
]

CONFIRMATION = types.ElicitRequest(
    params=types.ElicitRequestFormParams(
        message="Go ahead?",
        requested_schema={"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]},
    )
)


def text(value: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=value)])


async def list_tools(_context, _params) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def call_tool(_context, params):
    arguments = params.arguments or {}
    if params.name == "reverse":
        return text(arguments["text"][::-1])
    if params.name == "area":
        area = arguments["width"] * arguments["height"]
        return types.CallToolResult(content=[types.TextContent(text=f"{area}")], structured_content={"area": area})
    if params.name == "confirm":
        answer = (params.input_responses or {}).get("confirmation")
        if answer is None:
            return types.InputRequiredResult(input_requests={"confirmation": CONFIRMATION}, request_state="asked")
        return text(f"The user answered {answer.action}.")
    return types.CallToolResult(content=[types.TextContent(text=f"Unknown tool: {params.name}")], is_error=True)


server = Server("sdk", version="1", on_list_tools=list_tools, on_call_tool=call_tool)


async def serve_stdio() -> None:
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


transport, *rest = sys.argv[1:]
if transport == "stdio":
    asyncio.run(serve_stdio())
else:
    app = server.streamable_http_app(json_response="json" in rest, stateless_http="stateless" in rest)
    uvicorn.run(app, host="127.0.0.1", port=int(rest[0]), log_level="info")
