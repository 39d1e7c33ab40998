"""A class with a memory as an environment: each episode gets an object of its own."""

from toolstep.envs import ToolUseEnv
from toolstep.envs.tools import tool


class Basket:
    def __init__(self):
        self.items = []

    @tool(run_in="inline")
    def put(self, item: str) -> int:
        """Put an item into the basket; how many there are then."""
        self.items.append(item)
        return len(self.items)


env = ToolUseEnv([{"prompt": "Put a pear and a plum into the basket.", "answer": "2"}], tools=[Basket])
observation, info = env.reset(seed=0)
for item in ("pear", "plum"):
    observation, *_ = env.step(f'<tool_call>{{"name": "put", "arguments": {{"item": "{item}"}}}}</tool_call>')
print(observation, env.step("There are 2.")[1])
env.reset(seed=0)  # another basket
print(env.step('<tool_call>{"name": "put", "arguments": {"item": "fig"}}</tool_call>')[0])
env.close()
