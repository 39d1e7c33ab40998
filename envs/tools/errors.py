"""What can be wrong with a tool, and with a call of one."""

from __future__ import annotations

from toolstep.envs.types import CallStatus


class ToolSchemaError(TypeError):
    """A function or schema from which no tool can be made; raised where the tool is defined."""


class ToolBackendError(RuntimeError):
    """What stands behind some tools cannot be reached: the infrastructure's failure, not a model's or a call's."""


class NotRecorded(ToolBackendError):
    """A recording has no answer for what an episode asked of its tools."""


class ArgumentError(ValueError):
    """Arguments that do not fit a tool.  `status` says in which way, `message` is for the model to read."""

    def __init__(self, status: CallStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    def __reduce__(self) -> tuple[type[ArgumentError], tuple[CallStatus, str]]:
        return ArgumentError, (self.status, self.message)
