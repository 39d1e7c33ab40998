"""A llama.cpp server as a process: `python llama_server.py FILE SLOTS IDS_A_SLOT`.

It prints its address, and ends with its stdin.  Keys and values are in fp32 and there is no flash attention, so that
its logits are those of a plain forward.
"""
