"""JSON-RPC over the pipes of a child process, a message a line.

The SDK's own `stdio_client` gives no hold of the process: what a server leaves running when it exits would stay, a
silent one would have its grace period, and its last words would be lost to the error that needs them.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import IO, Any

from toolstep.envs.tools.mcp.process import POLL, ServerProcess

MAX_MESSAGE = 16 << 20  # bytes; a server that writes more without a line break is stopped


@asynccontextmanager
async def stdio_streams(
    process: ServerProcess, *, grace: Callable[[], float], lost: Callable[[str], None]
) -> AsyncIterator[Any]:
    """The two streams that an MCP session takes.  Leaving stops the process, politely for `grace()` seconds.

    lost: called once with the reason where the server ends, or breaks the protocol, by itself.
    Lines that are no JSON-RPC messages are dropped: many servers print.
    """
    import anyio

    reads_in, reads_out = anyio.create_memory_object_stream[Any](0)
    writes_in, writes_out = anyio.create_memory_object_stream[Any](0)
    async with contextlib.AsyncExitStack() as stack:
        # Leaving: first the process, which ends the tasks on its pipes, then these.
        stdout = await stack.enter_async_context(_reading(process.stdout, MAX_MESSAGE))
        stderr = await stack.enter_async_context(_reading(process.stderr, 1 << 16))
        stdin = await stack.enter_async_context(_writing(process.stdin))
        wanted = True

        def tell(reason: str) -> None:
            if wanted:
                lost(reason)

        tasks = [
            asyncio.create_task(_receive(stdout, reads_in, tell)),
            asyncio.create_task(_send(stdin, writes_out, reads_in)),
            asyncio.create_task(_listen(stderr, process)),
        ]
        try:
            yield reads_out, writes_in
        finally:
            wanted = False
            try:
                await _stop(process, stdin, grace())
                await asyncio.wait(tasks[2:], timeout=0.2)  # its last words
            finally:
                process.kill()
                for task in tasks:
                    task.cancel()
                for stream in (reads_in, reads_out, writes_in, writes_out):
                    stream.close()


async def _receive(stdout: asyncio.StreamReader, session: Any, lost: Callable[[str], None]) -> None:
    import anyio
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    reason = "ended"
    with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with session:
            try:
                while line := await stdout.readline():
                    try:
                        message = jsonrpc_message_adapter.validate_json(line.strip(), by_name=False)
                    except ValueError:
                        continue
                    await session.send(SessionMessage(message))
            except ValueError:  # of `readline`
                reason = f"wrote a line of more than {MAX_MESSAGE >> 20} MiB"
            except OSError:
                pass
            lost(reason)


async def _send(stdin: asyncio.StreamWriter, messages: Any, session: Any) -> None:
    with contextlib.suppress(OSError):
        async with messages:
            async for one in messages:
                body = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                stdin.write(body.encode("utf-8") + b"\n")
                await stdin.drain()
        return
    await session.aclose()  # nobody reads what we write: the session ends, instead of waiting for answers


async def _listen(stderr: asyncio.StreamReader, process: ServerProcess) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    with contextlib.suppress(OSError):
        while chunk := await stderr.read(1 << 16):
            process.hear(decoder.decode(chunk))


async def _stop(process: ServerProcess, stdin: asyncio.StreamWriter, grace: float) -> None:
    """The end of its input, then SIGTERM, then SIGKILL; what it leaves behind in its group is killed in any case."""
    stdin.close()
    for asked in (False, True):
        if grace <= 0 or process.ended():
            break
        if asked:
            process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace / 2):
                while not process.ended():
                    await asyncio.sleep(POLL)
    process.kill()
    while not process.ended():
        await asyncio.sleep(POLL)


@asynccontextmanager
async def _reading(pipe: IO[bytes], limit: int) -> AsyncIterator[asyncio.StreamReader]:
    reader = asyncio.StreamReader(limit=limit)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        yield reader
    finally:
        transport.close()


@asynccontextmanager
async def _writing(pipe: IO[bytes]) -> AsyncIterator[asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    flow_control: Any = asyncio.streams.FlowControlMixin  # what a StreamWriter needs to `drain`
    transport, protocol = await loop.connect_write_pipe(lambda: flow_control(loop=loop), pipe)
    try:
        yield asyncio.StreamWriter(transport, protocol, None, loop)
    finally:
        if not transport.is_closing() or transport.get_write_buffer_size():
            transport.abort()
