"""How the command ends: exit codes, and what a user can get wrong in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

INTERRUPTED = 130
USAGE = 2
FAILED = 1


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user can get wrong, as one line on stderr and exit code 2."""
    try:
        yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        fail(error, USAGE)
    except Exception as error:
        from gymnasium.error import Error as GymnasiumError

        from toolstep.agents.server.errors import ServerError
        from toolstep.envs.chat.errors import ChatTemplateError
        from toolstep.envs.tools.errors import ToolBackendError

        if not isinstance(error, (ChatTemplateError, GymnasiumError, ServerError, ToolBackendError)):
            raise
        fail(error, USAGE)


def fail(error: object, code: int) -> NoReturn:
    """One line on stderr, and the end."""
    typer.echo(f"toolstep: error: {' '.join(str(error).split())}", err=True)
    raise typer.Exit(code)
