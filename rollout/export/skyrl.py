"""SkyRL: a `GeneratorOutput`, one row for each context of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolstep.rollout.export.rows import ExportError, Row, segment_rows
from toolstep.rollout.types import OK, Trajectory


@dataclass(frozen=True, slots=True)
class TrajectoryID:
    """What SkyRL's class of that name is read by: the task that it groups by, and which sample of it this is."""

    instance_id: str
    repetition_id: int

    def to_string(self) -> str:
        return f"{self.instance_id}_{self.repetition_id}"


def to_skyrl(
    trajectories: Sequence[Trajectory], *, pad_id: int = 0, credit: Literal["episode", "turn"] = "episode"
) -> dict[str, Any]:
    """A dict with the keys of SkyRL's `GeneratorOutput`: lists with one entry a row, None for what it has not.

    response_ids, loss_masks (1 sampled, 0 not) and rollout_logprobs (0.0 off the mask; None where a script wrote a
    turn) have one length a row; nothing is shifted.  stop_reasons: "stop" where the episode came to its own end,
    "length" where a budget cut it, by which SkyRL filters overlong rows.  trajectory_ids name group and sample.
    is_last_step marks the last row of each episode.

    rewards: for credit "episode" one number a row, the episode's total at its last row (SkyRL reads no other); for
        "turn" one number an id, each turn's at its last sampled id.
    pad_id: stands for a response in which nothing was sampled, off the mask.

    SkyRL has no way to say that a row is outside its group's baseline, so an episode that failed is left out; where
    all members of a group failed, one stays, masked and with reward 0, because SkyRL counts groups.  Such an output,
    and one with episodes of several contexts, needs `generator.step_wise_trajectories=true`; any other fits both
    settings.

    Raises `ExportError` for credit "turn" and an episode of several contexts (SkyRL compares the last rows alone), and
    what `segment_rows` raises.
    """
    if credit not in ("episode", "turn"):
        raise ExportError(f"credit must be 'episode' or 'turn', got {credit!r}")
    names = _names(trajectories)
    rows = segment_rows(_kept(trajectories, names), pad_id)
    if credit == "turn" and not all(row.last for row in rows):
        raise ExportError("credit='turn' needs episodes of one context; use credit='episode', or history='keep'")
    known = all(row.trajectory.has_logprobs for row in rows)
    return {
        "prompt_token_ids": [row.prompt_ids.tolist() for row in rows],
        "response_ids": [row.response_ids.tolist() for row in rows],
        "rewards": [_reward(row) if credit == "episode" else row.turn_rewards().tolist() for row in rows],
        "loss_masks": [row.mask.astype(int).tolist() for row in rows],
        "stop_reasons": ["stop" if row.trajectory.terminated else "length" for row in rows],
        "rollout_metrics": None,
        "rollout_logprobs": [row.logprobs.tolist() for row in rows] if known else None,
        "trajectory_ids": [names[id(row.trajectory)] for row in rows],
        "trajectory_generation_times": None,
        "rollout_expert_indices": None,
        "is_last_step": [row.last for row in rows],
        "env_metrics": [dict(row.trajectory.metrics) for row in rows],
        "pixel_values": None,
        "image_grid_thw": None,
    }


def _reward(row: Row) -> float:
    return row.trajectory.total_reward if row.last and row.usable else 0.0


def _names(trajectories: Sequence[Trajectory]) -> dict[int, TrajectoryID]:
    """By identity; an episode without a group is compared with nobody."""
    out = {}
    for n, t in enumerate(trajectories):
        group = f"alone-{n}" if t.group_id is None else f"group-{t.group_id}"
        out[id(t)] = TrajectoryID(f"{group}-{t.seed}", t.sample_index)
    return out


def _kept(trajectories: Sequence[Trajectory], names: Mapping[int, TrajectoryID]) -> list[Trajectory]:
    """The episodes that did not fail, and one of each group in which all did."""
    groups = {names[id(t)].instance_id for t in trajectories if t.status == OK}
    out = []
    for t in trajectories:
        group = names[id(t)].instance_id
        if t.status == OK or group not in groups:
            groups.add(group)
            out.append(t)
    return out
