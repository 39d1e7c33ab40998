"""Collecting episodes: the same trajectories whatever plays them, and nothing generated in vain (I14, I17, I18)."""

from __future__ import annotations

from itertools import product
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_fakes import MODES, STOP, FakeEnv, FakeTextAgent, FakeTokenAgent, fake_envs

from toolstep.agents.base import Completion
from toolstep.envs.types import Source
from toolstep.rollout.collect import RunMetrics, collect, play
from toolstep.rollout.specs import EpisodeSpec, group_specs, sampling_seed, task_seeds
from toolstep.rollout.types import TrajectoryError


def run(num_envs, mode, specs, *, agent=None, view="tokens", **options):
    envs = fake_envs(num_envs, mode, view=view, **options)
    try:
        return collect(envs, agent or (FakeTokenAgent() if view == "tokens" else FakeTextAgent()), specs)
    finally:
        envs.close()


def dicts(trajectories):
    return [t.to_dict() for t in trajectories]


@pytest.mark.parametrize("view", ["tokens", "text"])
def test_modes_and_row_counts_give_identical_trajectories(view):
    specs = group_specs(5, 3, seed=4)
    expected = dicts(run(1, AutoresetMode.DISABLED, specs, view=view))
    assert len(expected) == 15
    for num_envs, mode in product([1, 3, 7, 20], MODES):
        assert dicts(run(num_envs, mode, specs, view=view)) == expected, (num_envs, mode)


@settings(max_examples=40, deadline=None)
@given(
    seeds=st.lists(st.integers(0, 2**40), min_size=0, max_size=9),
    num_envs=st.integers(1, 8),
    mode=st.sampled_from(MODES),
    order=st.randoms(use_true_random=False),
)
def test_order_of_specs_only_orders_the_result(seeds, num_envs, mode, order):
    specs = [EpisodeSpec(s, i % 2) for i, s in enumerate(seeds)]
    expected = dict(zip(specs, dicts(run(2, AutoresetMode.SAME_STEP, specs))))
    order.shuffle(specs)
    assert dicts(run(num_envs, mode, specs)) == [expected[s] for s in specs]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 12), num_envs=st.integers(1, 8), mode=st.sampled_from(MODES), seed=st.integers(0, 99))
def test_one_generation_for_each_transition(n, num_envs, mode, seed):
    agent, metrics = FakeTokenAgent(), RunMetrics()
    envs = fake_envs(num_envs, mode)
    trajectories = collect(envs, agent, group_specs(n, 1, seed), metrics=metrics)
    transitions = [x for t in trajectories for x in t.transitions()]
    assert agent.generations == len(transitions) == metrics.generations == metrics.transitions
    assert metrics.episodes == len(trajectories) == n
    assert metrics.sampled_tokens == sum(t.sampled for t in trajectories)


def test_nothing_is_played_without_specs():
    agent = FakeTokenAgent()
    assert collect(fake_envs(3), agent, []) == []
    assert agent.generations == 0


def test_trajectory_is_what_a_single_env_and_agent_would_produce():
    """The record against a plain loop over one env: ids, sources, log-probs, rewards, messages."""
    for spec in group_specs(6, 2, seed=9):
        (got,) = run(3, AutoresetMode.NEXT_STEP, [spec])
        env, agent = FakeEnv(), FakeTokenAgent()
        agent.start(0, sampling_seed(spec, 0))
        obs, info = env.reset(seed=spec.seed)
        ids, sources, logprobs, rewards = list(obs), list(info["sources"]), [0.0] * len(obs), []
        messages = list(info["new_messages"])
        prompt = len(ids)
        done = False
        while not done:
            (c,) = agent.act([0], [obs])
            obs, reward, terminated, truncated, info = env.step(c.token_ids)
            ids += [*c.token_ids, *obs]
            sources += [Source.SAMPLED] * len(c.token_ids) + list(info["sources"])
            logprobs += [*c.logprobs, *[0.0] * len(obs)]
            rewards.append(np.float32(reward))
            messages += info["new_messages"]
            done = terminated or truncated
        assert got.token_ids.tolist() == ids
        assert got.source.tolist() == sources
        assert got.logprobs.tolist() == logprobs
        assert got.turn_rewards.tolist() == rewards
        assert got.messages == messages
        assert got.prompt_length == prompt
        assert (got.terminated, got.truncated) == (terminated, truncated)
        assert (got.stop_reason, got.task_id, got.tags) == (
            info["stop_reason"],
            info["task_id"],
            info["tags"],
        )
        assert (got.seed, got.sample_index, got.group_id) == (spec.seed, spec.sample_index, spec.group_id)
        assert set(got.weight_versions[got.action_mask].tolist()) <= {7}


def test_final_observation_of_a_truncated_episode_is_kept_behind_the_last_turn():
    cut = [t for t in run(4, AutoresetMode.SAME_STEP, group_specs(60, 1, seed=1)) if t.stop_reason == "cut_turn"]
    assert cut
    assert all(t.truncated and not t.terminated for t in cut)
    behind = [t.token_ids[t.turn == t.turns] for t in cut]
    assert any(len(b) for b in behind)
    assert all(t.metrics["truncated_responses"] == 1 for t in cut)


def test_group_members_share_the_prompt_and_differ_in_their_samples():
    trajectories = run(4, AutoresetMode.NEXT_STEP, group_specs(1, 8, seed=3))
    assert len({t.token_ids[: t.prompt_length].tobytes() for t in trajectories}) == 1
    assert len({t.token_ids.tobytes() for t in trajectories}) > 1


def test_run_seed_changes_samples_but_not_tasks():
    specs = group_specs(6, 1, seed=3)
    a, b = (collect(fake_envs(2), FakeTokenAgent(), specs, seed=s) for s in (1, 2))
    assert [t.task_id for t in a] == [t.task_id for t in b]
    assert dicts(a) != dicts(b)


def test_agents_own_seed_is_the_run_seed_by_default():
    agent = FakeTokenAgent()
    agent.seed = 5
    specs = group_specs(4, 1, seed=0)
    assert dicts(collect(fake_envs(2), agent, specs)) == dicts(collect(fake_envs(3), FakeTokenAgent(), specs, seed=5))


@pytest.mark.parametrize("mode", MODES)
def test_aborted_turn_ends_the_episode_as_an_agent_error(mode):
    specs = group_specs(30, 1, seed=2)
    trajectories = run(4, mode, specs, agent=FakeTokenAgent(abort_every=5))
    aborted = [t for t in trajectories if t.status == "agent_error"]
    assert 0 < len(aborted) < 30
    for t in aborted:
        assert (t.terminated, t.truncated, t.stop_reason) == (False, True, "error")
        assert t.turn_rewards[-1] == 0.0
    whole = {t.seed: t.to_dict() for t in run(4, mode, specs)}
    assert all(t.to_dict() == whole[t.seed] for t in trajectories if t.status == "ok")


def test_all_rows_aborted_is_not_stepped():
    trajectories = run(2, AutoresetMode.DISABLED, group_specs(5, 1, seed=2), agent=FakeTokenAgent(abort_every=1))
    assert [t.status for t in trajectories] == ["agent_error"] * 5
    assert all(t.turns == 1 for t in trajectories)


@pytest.mark.parametrize("mode", MODES)
def test_env_error_is_a_status_not_a_lost_episode(mode):
    specs = group_specs(20, 1, seed=2)
    numbers = [int(t.task_id.removeprefix("fake-")) for t in run(1, mode, specs)]
    trajectories = run(3, mode, specs, fail_on=numbers[:4])
    assert [t.status for t in trajectories][:4] == ["env_error"] * 4
    assert [t.error for t in trajectories][:5] == ["it broke"] * 4 + [""]
    assert {t.status for t in trajectories[4:]} == {"ok"}


class BrokenReset(FakeEnv):
    """Every second task cannot be begun: the env says so at its reset."""

    def reset(self, **kwargs):
        observation, info = super().reset(**kwargs)
        if self.number % 2:
            return observation[:0], info | {"stop_reason": "error", "status": "env_error", "sources": b""}
        return observation, info


@pytest.mark.parametrize("mode", MODES)
def test_episode_that_is_over_at_its_reset_takes_no_turn(mode):
    agent = FakeTokenAgent()
    envs = SyncVectorEnv([BrokenReset] * 3, autoreset_mode=mode)
    trajectories = collect(envs, agent, group_specs(20, 1, seed=0))
    failed = [t for t in trajectories if t.status == "env_error"]
    assert 0 < len(failed) < 20
    assert all(t.turns == 0 and t.context == 0 and t.truncated and t.transitions() == [] for t in failed)
    assert agent.generations == sum(t.turns for t in trajectories)


def test_interrupt_leaves_what_is_finished():
    finished = []
    specs = group_specs(20, 1, seed=0)
    with pytest.raises(KeyboardInterrupt):
        collect(fake_envs(3), FakeTokenAgent(interrupt_after=20), specs, on_episode=finished.append)
    assert 0 < len(finished) < 20
    whole = {t.seed: t.to_dict() for t in run(3, AutoresetMode.NEXT_STEP, specs)}
    assert all(t.to_dict() == whole[t.seed] for t in finished)


def test_play_yields_each_index_once_as_episodes_finish():
    specs = group_specs(12, 1, seed=0)
    got = list(play(fake_envs(4), FakeTokenAgent(), specs))
    assert sorted(i for i, _ in got) == list(range(12))
    assert all(t.seed == specs[i].seed for i, t in got)
    assert [i for i, _ in got] != list(range(12))


def test_predict_agent_is_bound_once_and_told_where_episodes_start():
    agent = FakeTextAgent()
    envs = fake_envs(3, view="text")
    trajectories = collect(envs, agent, group_specs(9, 1, seed=0))
    assert agent.bound == [envs]
    assert all(t.context == 0 and t.turns > 0 for t in trajectories)
    assert all(t.messages[1]["role"] == "assistant" for t in trajectories)


class SeededTextAgent:
    """Draws at random, each row from a generator that `start` seeds; has no `act`."""

    env_kwargs: ClassVar = {}

    def start(self, row, seed):
        self.rngs = getattr(self, "rngs", {})
        self.rngs[row] = np.random.default_rng(seed)

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        draw = [self.rngs.get(row, np.random.default_rng()).random() for row in range(len(observation))]
        return tuple(map(str, draw)), state


def test_agent_without_tokens_can_be_seeded_by_episode_too():
    specs = group_specs(7, 2, seed=0)
    runs = [dicts(run(n, mode, specs, agent=SeededTextAgent(), view="text")) for n, mode in zip((1, 3, 20), MODES)]
    assert runs[0] == runs[1] == runs[2]


class Script:
    """Writes token ids without knowing their log-probabilities."""

    env_kwargs = {"view": "tokens"}

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return tuple(np.array([5, STOP]) for _ in observation), state


def test_script_in_a_token_view_has_sampled_ids_without_logprobs():
    trajectories = run(2, AutoresetMode.NEXT_STEP, group_specs(4, 1, seed=0), agent=Script())
    assert all(t.sampled == 2 * t.turns and not t.has_logprobs for t in trajectories)
    assert not any(t.logprobs.any() for t in trajectories)


def test_token_agent_in_a_text_env_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"env_kwargs \(view='tokens'\)"):
        collect(fake_envs(1, view="text"), FakeTokenAgent(), [EpisodeSpec(0)])


def test_single_env_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"SyncVectorEnv\(\[lambda: env\]\)"):
        collect(FakeEnv(), FakeTokenAgent(), [EpisodeSpec(0)])


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), 1e300])
def test_reward_that_is_no_number_is_refused_by_name(reward):
    with pytest.raises(TrajectoryError, match=r"turn_rewards\[0\] is .* in task 'fake-\d+' \(seed \d+\)"):
        run(2, AutoresetMode.NEXT_STEP, group_specs(3, 1, seed=0), reward=reward)


class NoSources(FakeEnv):
    def _info(self, *args, **kwargs):
        info = super()._info(*args, **kwargs)
        del info["sources"]
        return info


def test_token_env_without_provenance_is_refused():
    with pytest.raises(ValueError, match=r"info\['sources'\] is missing"):
        collect(SyncVectorEnv([NoSources]), FakeTokenAgent(), [EpisodeSpec(0)])


class OneShort(FakeTokenAgent):
    def act(self, rows, observations) -> list[Completion]:
        return super().act(rows, observations)[1:]


def test_agent_that_returns_too_few_completions_is_named():
    with pytest.raises(ValueError, match=r"OneShort\.act returned 1 completions for 2 rows"):
        collect(fake_envs(2), OneShort(), group_specs(2, 1, seed=0))


class Counting(gym.Env):
    """Numbers in, numbers out: an env that has nothing of ours."""

    observation_space = gym.spaces.Box(0, 9, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 4))
        return np.array([self.left], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left], np.float32), 1.0, self.left == 0, False, {}


class Zeros:
    env_kwargs = {}

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.zeros(len(observation), dtype=np.int64), state


@pytest.mark.parametrize("mode", MODES)
def test_any_gymnasium_vector_env_can_be_played(mode):
    specs = group_specs(7, 1, seed=0)
    trajectories = collect(SyncVectorEnv([Counting] * 3, autoreset_mode=mode), Zeros(), specs)
    env = Counting()
    expected = []
    for spec in specs:
        obs, _ = env.reset(seed=spec.seed)
        expected.append(float(obs[0]))
    assert [t.total_reward for t in trajectories] == expected
    assert {t.stop_reason for t in trajectories} == {"terminated"}


def test_async_env_forms_that_lose_text_or_actions_are_refused():
    with pytest.raises(ValueError, match="shared_memory=False"):
        _refused_async(AutoresetMode.SAME_STEP, shared_memory=True)
    with pytest.raises(ValueError, match="SAME_STEP"):
        _refused_async(AutoresetMode.NEXT_STEP, shared_memory=False)


def _refused_async(mode, *, shared_memory):
    envs = AsyncVectorEnv([lambda: FakeEnv("text")], autoreset_mode=mode, shared_memory=shared_memory)
    try:
        collect(envs, FakeTextAgent(), [EpisodeSpec(0)])
    finally:
        envs.close()


def test_async_env_gives_the_same_trajectories():
    specs = group_specs(6, 1, seed=0)
    envs = AsyncVectorEnv([FakeEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP, shared_memory=False)
    try:
        got = dicts(collect(envs, FakeTokenAgent(), specs))
    finally:
        envs.close()
    assert got == dicts(run(3, AutoresetMode.DISABLED, specs))


def test_task_seeds_are_distinct_stable_and_exact_in_json():
    seeds = task_seeds(500, seed=0)
    assert len(set(seeds)) == 500
    assert task_seeds(20, seed=0) == seeds[:20]
    assert all(type(s) is int and 0 <= s < 2**53 for s in seeds)
    assert not set(seeds) & set(task_seeds(500, seed=1))
    assert task_seeds(0, seed=0) == []


@given(st.integers(0, 2**60), st.integers(0, 9), st.integers(0, 2**40))
def test_sampling_seed_depends_on_task_sample_and_run(seed, sample, run_seed):
    spec = EpisodeSpec(seed, sample)
    value = sampling_seed(spec, run_seed)
    assert 0 <= value < 2**63
    assert value == sampling_seed(EpisodeSpec(seed, sample, group_id=3), run_seed)
    others = [(EpisodeSpec(seed + 1, sample), run_seed), (EpisodeSpec(seed, sample + 1), run_seed)]
    assert value not in {sampling_seed(s, r) for s, r in [*others, (spec, run_seed + 1)]}


def test_spec_takes_numpy_integers_and_refuses_what_is_no_seed():
    assert type(EpisodeSpec(np.int64(3)).seed) is int
    for bad in (-1, 1.5, "1", None, True):
        with pytest.raises(ValueError, match=r"EpisodeSpec\.seed must be an integer >= 0"):
            EpisodeSpec(bad)
    with pytest.raises(ValueError, match="group_size must be >= 1"):
        group_specs(2, 0, seed=0)


def test_time_is_split_between_agent_and_env():
    metrics = RunMetrics()
    collect(fake_envs(3), FakeTokenAgent(), group_specs(9, 1, seed=0), metrics=metrics)
    assert metrics.agent_seconds > 0
    assert metrics.env_seconds > 0
    assert metrics.agent_seconds + metrics.env_seconds <= metrics.seconds
    assert metrics.tokens_per_second == metrics.sampled_tokens / metrics.seconds
