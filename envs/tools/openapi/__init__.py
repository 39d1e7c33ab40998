"""Tools of HTTP servers that an OpenAPI document describes."""

from toolstep.envs.tools.openapi.load import OpenAPIError
from toolstep.envs.tools.openapi.source import OpenAPI

__all__ = ["OpenAPI", "OpenAPIError"]
