"""EpisodeRecorder: what one row has seen and sampled so far, appended in order and never touched again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolstep.agents.base import Completion
from toolstep.envs.types import Source, StopReason
from toolstep.rollout.specs import EpisodeSpec
from toolstep.rollout.types import AGENT_ERROR, OK, Trajectory


class EpisodeRecorder:
    """Builds the `Trajectory` of one episode.

    `tokens`: observations and actions are token ids; otherwise (text) only messages and rewards are kept.
    """

    def __init__(self, spec: EpisodeSpec, *, tokens: bool):
        self.spec = spec
        self._tokens = tokens
        self._ids: list[NDArray[np.int32]] = []
        self._sources: list[NDArray[np.uint8]] = []
        self._logprobs: list[NDArray[np.float32]] = []
        self._model_logprobs: list[NDArray[np.float32]] = []
        self._turns: list[NDArray[np.int32]] = []
        self._versions: list[NDArray[np.int32]] = []
        self._segment_starts = [0]
        self._prompt_length = 0
        self._rewards: list[float] = []
        self._messages: list[dict[str, Any]] = []
        self._actions: list[str | int] = []
        self._calls: Counter[str] = Counter()
        self._truncated_responses = 0
        self._info: dict[str, Any] = {}
        self._ended = (False, False)
        self._status = OK

    def open(self, observation: Any, info: Mapping[str, Any]) -> bool:
        """The reset.  True if the episode is over before its first turn (its reset failed)."""
        self._observe(observation, info)
        self._prompt_length = sum(a.size for a in self._ids)
        if not self._info.get("stop_reason"):
            return False
        terminated = self._info["stop_reason"] in {r.value for r in StopReason if r.terminated}
        self._ended = (terminated, not terminated)
        return True

    def act(self, action: Completion | NDArray[np.integer[Any]] | str | int | None) -> None:
        """The turn that is about to be stepped; bare ids where a script wrote them, None for another kind of action."""
        if isinstance(action, str | int):
            self._actions.append(action)
        elif action is None or not self._tokens:
            return
        elif isinstance(action, Completion):
            version = action.weight_version
            self._append(action.token_ids, Source.SAMPLED, action.logprobs, action.model_logprobs, version)
        else:
            self._append(np.asarray(action), Source.SAMPLED)

    def abort(self, action: Completion) -> None:
        """The agent gave the turn up: keep what it sampled; the episode ends here, no fair sample of it."""
        self.act(action)
        self._rewards.append(0.0)
        self._ended = (False, True)
        self._status = AGENT_ERROR
        self._info["error"] = action.error
        self._info["stop_reason"] = StopReason.ERROR.value

    def step(self, observation: Any, reward: float, terminated: bool, truncated: bool, info: Mapping[str, Any]) -> bool:
        """What the env answered.  True if the episode is over."""
        self._rewards.append(float(reward))
        if self._tokens and info.get("new_segment", False):
            self._segment_starts.append(sum(a.size for a in self._ids))
        self._observe(observation, info)
        self._ended = (terminated, truncated)
        return terminated or truncated

    def close(self) -> Trajectory:
        """The finished trajectory; `TrajectoryError` for what env or agent got wrong (a NaN reward)."""
        terminated, truncated = self._ended
        info = self._info
        source = _join(self._sources, np.uint8)
        with np.errstate(over="ignore"):  # a reward that float32 cannot hold is refused as inf, by name
            rewards = np.array(self._rewards, dtype=np.float64).astype(np.float32)
        return Trajectory(
            token_ids=_join(self._ids, np.int32),
            source=source,
            logprobs=_join(self._logprobs, np.float32),
            model_logprobs=_join(self._model_logprobs, np.float32),
            turn=_join(self._turns, np.int32),
            weight_versions=_join(self._versions, np.int32),
            segment_starts=self._segment_starts,
            prompt_length=self._prompt_length,
            turn_rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            stop_reason=str(info.get("stop_reason") or ("terminated" if terminated else "truncated")),
            status=self._status if self._status != OK else str(info.get("status", OK)),
            task_id=str(info.get("task_id", "")),
            group_id=self.spec.group_id,
            sample_index=self.spec.sample_index,
            seed=self.spec.seed,
            messages=self._messages,
            metrics=self._metrics(source),
            tags=dict(info.get("tags", {})),
            error=str(info.get("error", "")),
            history_policy=str(info.get("history_policy", "keep")),
            actions=self._actions,
        )

    def _metrics(self, source: NDArray[np.uint8]) -> dict[str, float]:
        info = self._info
        sampled = int(np.count_nonzero(source == Source.SAMPLED))
        out = {
            "turns": float(len(self._rewards)),
            "score": float(info.get("score", 0.0)),
            "success": float(info.get("success", False)),
            # A text view has no ids to count, but its env may have a tokenizer to count with.
            "sampled_tokens": float(sampled if self._tokens else info.get("sampled_tokens", 0)),
            "observed_tokens": float(np.count_nonzero(source > Source.SAMPLED)),
            "context_tokens": float(source.size if self._tokens else info.get("context_tokens", 0)),
            "truncated_responses": float(self._truncated_responses),
            "history_rewrites": float(info.get("history_rewrites", 0)),
        }
        out |= {f"calls/{status}": float(n) for status, n in sorted(self._calls.items())}
        out |= {f"reward/{k}": float(v) for k, v in info.get("reward_terms", {}).items()}
        return out

    def _observe(self, observation: Any, info: Mapping[str, Any]) -> None:
        self._info.update(info)
        self._messages += info.get("new_messages", ())
        self._calls.update(info.get("call_statuses", ()))
        self._truncated_responses += bool(info.get("response_truncated", False))
        if self._tokens:
            ids = np.asarray(observation)
            sources = info.get("sources")
            if sources is None or len(sources) != ids.size:
                found = "is missing" if sources is None else f"has {len(sources)} bytes"
                raise ValueError(
                    f"task {self._info.get('task_id')!r}, turn {len(self._rewards)}: info['sources'] {found} "
                    f"for an observation of {ids.size} ids; a token env must say who wrote each id, one byte "
                    f"of toolstep.envs.types.Source an id"
                )
            self._append(ids, np.frombuffer(sources, dtype=np.uint8))

    def _append(
        self,
        ids: NDArray[Any],
        source: Source | NDArray[np.uint8],
        logprobs: NDArray[np.float32] | None = None,
        model_logprobs: NDArray[np.float32] | None = None,
        version: int = -1,
    ) -> None:
        n = ids.size
        zeros = np.zeros(n, dtype=np.float32)
        self._ids.append(ids.astype(np.int32))
        self._sources.append(np.full(n, source, np.uint8) if isinstance(source, Source) else source.copy())
        self._logprobs.append(zeros if logprobs is None else logprobs.astype(np.float32))
        self._model_logprobs.append(zeros if model_logprobs is None else model_logprobs.astype(np.float32))
        self._turns.append(np.full(n, len(self._rewards), dtype=np.int32))
        self._versions.append(np.full(n, version, dtype=np.int32))


def _join(parts: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=dtype)
