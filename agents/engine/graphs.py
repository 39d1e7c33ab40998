"""One forward run again and again in the same memory: captured in CUDA graphs; and whether it can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Compute = Callable[[], torch.Tensor]


class Graphs:
    """Captures forwards on one CUDA device; all graphs share the memory of what they compute on the way.

    So a replay overwrites the result of any replay before it, of whichever graph.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._alive: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Compute:
        """A function that does on the device what `compute` does, by one launch; its result is the same tensor always.

        compute: waits for nothing, and all that it reads and changes stays where it is.  Raises RuntimeError where the
        device finds that it does not.
        """
        with torch.cuda.device(self._device):
            if not self._alive:
                self._memory = torch.cuda.graph_pool_handle()  # that of graphs which are gone cannot be used again
            before = torch.cuda.current_stream()
            self._stream.wait_stream(before)
            try:
                with torch.cuda.stream(self._stream):
                    compute()  # libraries set themselves up, which cannot be captured
                graph = torch.cuda.CUDAGraph()
                # Other threads (a learner's, an env's) may use the device meanwhile.
                with torch.cuda.graph(graph, self._memory, self._stream, capture_error_mode="thread_local"):
                    out = compute()
            finally:
                torch.cuda.set_stream(before)  # a capture that fails does not go back
                before.wait_stream(self._stream)
        self._alive.add(graph)

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes operations for which the host waits for the device, or after which shapes depend on numbers: none of them
    can be captured.  On a CPU as well, where they cost nothing.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.data_dependent_output not in func.tags:
            with self:  # in inference mode, operations that are made of others come as one
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if _waits(func, args, out):
            self.found.append(str(func))
        return out


def _waits(func: Any, args: Sequence[Any], out: Any) -> bool:
    if func.overloadpacket in (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_):
        if len(args) > 2 and args[2].numel() == 1:
            return False  # one number for all cells that a mask names
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
        return True
    # Numbers of no dimension may come from the host.
    devices = {x.device for x in (*args, out) if isinstance(x, torch.Tensor) and (x.ndim or x.device.type != "cpu")}
    return len(devices) > 1
