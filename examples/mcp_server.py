"""The tools of an MCP server as an environment."""

import sys

from toolstep.envs import ToolUseEnv
from toolstep.envs.tools import MCP

tasks = [{"prompt": "How many apples are in stock?", "answer": "7"}]
env = ToolUseEnv(tasks, tools=MCP([sys.executable, "stock_server.py"], cwd=sys.path[0]))
observation, info = env.reset(seed=0)
print(observation)
observation, *_ = env.step('<tool_call>{"name": "in_stock", "arguments": {"item": "apples"}}</tool_call>')
print(observation, env.step("There are 7.")[1])
env.close()
