"""An MCP server written with FastMCP, for versions 2.14 and 4.

usage: fastmcp_server.py stdio | http PORT [stateless] [json] | sse PORT
"""

import asyncio
import sys

from fastmcp import Context, FastMCP

try:
    from mcp_types import ToolListChangedNotification as ToolListChanged
except ImportError:
    ToolListChanged = None

server = FastMCP("fastmcp", instructions="Use add for sums.")


@server.tool
def add(a: int, b: int) -> int:
    """Add two integers."""
    return a + b


@server.tool
def weather(city: str) -> dict[str, str | int]:
    """Return the weather of a city as structured content."""
    return {"city": city, "celsius": 21}


@server.tool
def fail(reason: str) -> str:
    """Fail with the given reason."""
    raise ValueError(reason)


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count slowly, with progress and log messages."""
    for i in range(1, to + 1):
        await ctx.report_progress(i, to)
        await ctx.info(f"counted to {i}")
        await asyncio.sleep(0.02)
    return f"counted to {to}"


@server.tool(annotations={"readOnlyHint": True})
async def greet(ctx: Context) -> str:
    """Ask the user for a name and greet them."""
    answer = await ctx.elicit("What is your name?", response_type=str)
    return f"Hello, {answer.data}!" if answer.action == "accept" else f"The user chose {answer.action}."


@server.tool
async def grow(ctx: Context) -> str:
    """Add the tool late_tool to this server."""

    def late_tool() -> str:
        """Exist since grow was called."""
        return "late"

    added = server.tool(late_tool)
    if asyncio.iscoroutine(added):
        await added
    # FastMCP 2 announces the new tool by itself, FastMCP 4 does not.
    if ToolListChanged is not None:
        await ctx.send_notification(ToolListChanged())
    return "grown"


@server.resource("memo://today")
def memo() -> str:
    """The memo of today."""
    return "Buy milk."


def main() -> None:
    transport, *rest = sys.argv[1:]
    if transport == "stdio":
        server.run("stdio", show_banner=False)
        return
    options: dict = {"host": "127.0.0.1", "port": int(rest[0]), "show_banner": False, "log_level": "info"}
    if "stateless" in rest:
        options["stateless_http"] = True
    if "json" in rest:
        options["json_response"] = True
    server.run(transport, **options)


main()
