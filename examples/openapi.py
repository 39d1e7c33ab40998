"""The operations of an OpenAPI document as an environment."""

from pathlib import Path

from pets_server import serving

from toolstep.envs import ToolUseEnv
from toolstep.envs.tools import OpenAPI

tasks = [{"prompt": "How old is Rex?", "answer": "7"}]
with serving() as url:
    env = ToolUseEnv(tasks, tools=OpenAPI(Path(__file__).with_name("pets.yaml"), url))
    observation, info = env.reset(seed=0)
    print(observation)
    observation, *_ = env.step('<tool_call>{"name": "find_pet", "arguments": {"name": "Rex"}}</tool_call>')
    print(observation, env.step("Rex is 7.")[1])
    env.close()
