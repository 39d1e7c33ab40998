"""Peak memory of the log-probs of a sequence, forth and back: the whole table of logits against chunks of it.

    python benchmarks/loss_memory.py

Each cell is a process of its own, which sets its high-water mark (VmHWM of /proc, so Linux only) back to what it holds
once the inputs are there, and reads it at the end.  The gradient of the head, V x H, is counted in both forms.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

HIDDEN = 256
CELLS = [(8_192, 4_096), (32_768, 1_024), (32_768, 4_096), (131_072, 1_024)]  # vocabulary, length
MIB = 2**20


def high_water() -> int:
    """Bytes of resident memory that this process has had at most."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def measure(form: str, vocabulary: int, length: int) -> None:
    """Print the bytes at the peak beyond the inputs, and the seconds."""
    import torch

    from toolstep.rollout.logprobs import token_logprobs

    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden = torch.randn(length, HIDDEN, requires_grad=True)
    weight = (torch.randn(vocabulary, HIDDEN) / HIDDEN**0.5).requires_grad_()
    targets = torch.randint(vocabulary, (length,))
    token_logprobs(hidden[:2], weight[:2], targets[:2] % 2).sum().backward()  # what the first call loads is not counted
    hidden.grad = weight.grad = None
    Path("/proc/self/clear_refs").write_text("5")
    before, start = high_water(), time.perf_counter()
    if form == "naive":
        logits = hidden @ weight.T
        logprobs = torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0]
    else:
        logprobs = token_logprobs(hidden, weight, targets)
    logprobs.mean().backward()
    print(high_water() - before, time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", nargs=3, metavar=("FORM", "VOCABULARY", "LENGTH"), help=argparse.SUPPRESS)
    cell = parser.parse_args().cell
    if cell:
        measure(cell[0], int(cell[1]), int(cell[2]))
        return
    print(f"fp32, hidden size {HIDDEN}, one thread; MiB beyond the inputs at the peak, and seconds\n")
    print("| vocabulary | length | logits | naive | chunked | head's gradient | naive s | chunked s |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for vocabulary, length in CELLS:
        peak, seconds = {}, {}
        for form in ("naive", "chunked"):
            command = [sys.executable, __file__, "--cell", form, str(vocabulary), str(length)]
            out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            peak[form], seconds[form] = f"{int(out[0]) / MIB:.0f}", f"{float(out[1]):.1f}"
        logits, head = 4 * vocabulary * length / MIB, 4 * vocabulary * HIDDEN / MIB
        row = [vocabulary, length, f"{logits:.0f}", peak["naive"], peak["chunked"], f"{head:.0f}"]
        row += [seconds["naive"], seconds["chunked"]]
        print("| " + " | ".join(map(str, row)) + " |", flush=True)


if __name__ == "__main__":
    main()
