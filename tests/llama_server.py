"""A llama.cpp server as a process: `python llama_server.py FILE SLOTS IDS_A_SLOT`.

It prints its address, and ends with its stdin.  Keys and values are in fp32 and there is no flash attention, so that
its logits are those of a plain forward.
"""

from __future__ import annotations

import os
import sys

import xllamacpp


def main() -> None:
    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[1]
    params.n_parallel = int(sys.argv[2])
    params.n_ctx = params.n_parallel * int(sys.argv[3])
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    if key := os.environ.get("LLAMA_TEST_KEY"):
        params.api_keys = [key]
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
