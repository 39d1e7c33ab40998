"""Tools of Model Context Protocol servers.  The SDK is imported when a server is started."""

from toolstep.envs.tools.mcp.source import MCP

__all__ = ["MCP"]
