"""An MCP server with one tool: `python stock_server.py` speaks the protocol over its pipes."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("stock")


@server.tool()
def in_stock(item: str) -> int:
    """How many of an item there are."""
    return {"apples": 7, "pears": 0}[item]


if __name__ == "__main__":
    server.run()
