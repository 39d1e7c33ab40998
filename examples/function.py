"""A Python function as an environment."""

from toolstep.envs import ToolUseEnv


def convert(amount: float, rate: float = 1.25) -> float:
    """Convert an amount of money.

    Args:
        amount: how much.
        rate: what one unit is worth.
    """
    return amount * rate


env = ToolUseEnv([{"prompt": "What are 8 euros in dollars?", "answer": "10"}], tools=[convert])
observation, info = env.reset(seed=0)
print(observation)
observation, *_ = env.step('<tool_call>{"name": "convert", "arguments": {"amount": 8}}</tool_call>')
print(observation, env.step("That is 10 dollars.")[1])
env.close()
