"""stable-baselines3, both ways: algorithms learn in our envs, models act in them, our agents run in its tools."""

from toolstep.agents.sb3.agent import SB3Agent, SpacesDiffer
from toolstep.agents.sb3.saved import SB3ZipError, load_policy
from toolstep.agents.sb3.vec_env import GymnasiumVecEnv

__all__ = ["GymnasiumVecEnv", "SB3Agent", "SB3ZipError", "SpacesDiffer", "load_policy"]
