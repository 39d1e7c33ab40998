"""What an episode earns: an outcome (by default the task's own score, 0 or 1) and terms that count by their weights.

`verifiers.py`: is the answer right?  One class for each kind of answer, by name in `registry.py` (`reward="numeric"`).
`terms.py`, `calls.py`: how the episode went (calls, tokens, an end that was cut short).
`rubric.py`: the weighted sum.  `stopped.py`: what foreign text could hang runs in a process that is killed.
A reward of one's own is a plain function of the finished `EpisodeRecord`.
"""

from toolstep.envs.rewards.registry import Reward, RewardSpec, make_reward, register_reward, reward_names
from toolstep.envs.rewards.rubric import RewardError, Rubric, make_rubric
from toolstep.envs.rewards.terms import TERMS
from toolstep.envs.rewards.verifiers import Exact, Numeric, Set, SQLResult, Stated, Text, Verifier

__all__ = [
    "TERMS",
    "Exact",
    "Numeric",
    "Reward",
    "RewardError",
    "RewardSpec",
    "Rubric",
    "SQLResult",
    "Set",
    "Stated",
    "Text",
    "Verifier",
    "make_reward",
    "make_rubric",
    "register_reward",
    "reward_names",
]
