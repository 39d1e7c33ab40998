"""A file of prompts and answers as an environment: named tools, named rewards, a line each."""

from pathlib import Path

import gymnasium as gym

import toolstep.envs  # noqa: F401  registers the ids

path, weights = str(Path(__file__).with_name("sums.jsonl")), {"call_cost": 0.1}
env = gym.make("toolstep/Jsonl-v0", path=path, tools=["calculator"], reward="numeric", reward_weights=weights)
observation, info = env.reset(seed=2)
print(observation)
observation, *_ = env.step('<tool_call>{"name": "calculator", "arguments": {"expression": "17 * 23"}}</tool_call>')
observation, reward, terminated, truncated, info = env.step("Together 391 chairs.")
print(info["reward_terms"], reward)
env.close()
