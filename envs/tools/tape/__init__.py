"""Tapes: what an env's tools answer, written down, and answered from it again without the tools.

A call is found again by its episode (the seed of the task and the sample of it) and its id, which counts what the agent
attempted in the episode: by its place, whatever rows, order and other episodes there are.
"""

from toolstep.envs.tools.tape.base import Tape
from toolstep.envs.tools.tape.playback import Playback, Take, read_takes
from toolstep.envs.tools.tape.recording import Recording

__all__ = ["Playback", "Recording", "Take", "Tape", "read_takes"]
