"""LLMAgent: `predict` is stable-baselines3's, written on `act`; a row's context follows its episode."""

from __future__ import annotations

from typing import Any

import engine_models as em
import numpy as np
import pytest
import torch

from toolstep.agents import Agent, LLMAgent, SamplingParams, TokenAgent

MODEL = em.model()
SAMPLING = SamplingParams(max_new_tokens=5)


def agent(**options: Any) -> LLMAgent:
    return LLMAgent(MODEL, **{"stop_ids": [5], "sampling": SAMPLING, **options})


def batch(*seeds: int, length: int = 8) -> tuple[np.ndarray, ...]:
    return tuple(em.ids(s, length) for s in seeds)


def test_it_is_an_agent_and_a_token_agent() -> None:
    made = agent()
    assert isinstance(made, Agent)
    assert isinstance(made, TokenAgent)
    assert made.env_kwargs == {"view": "tokens", "max_context": made.max_context, "stop_tokens": [5]}


def test_act_appends_and_answers_in_the_order_of_the_rows() -> None:
    made = agent()
    for row in (0, 1, 2):
        made.start(row, row)
    first = made.act([2, 0], batch(2, 0))
    second = made.act([0], [em.ids(9, 3)])
    context = made.engine.context(0).tolist()
    expected = [*em.ids(0, 8).tolist(), *first[1].token_ids.tolist(), *em.ids(9, 3).tolist()]
    assert context == expected + second[0].token_ids.tolist()
    with pytest.raises(ValueError, match="2 rows but 1 observations"):
        made.act([0, 1], batch(0))


def test_predict_equals_act_with_the_agents_own_seeds() -> None:
    made = agent(seed=7)
    actions, state = made.predict(batch(0, 1))
    other = agent(seed=7)
    repeat, _ = other.predict(batch(0, 1))
    assert [a.tolist() for a in actions] == [a.tolist() for a in repeat]
    assert all(a.dtype == np.int64 for a in actions)
    different, _ = agent(seed=8).predict(batch(0, 1))
    assert [a.tolist() for a in actions] != [a.tolist() for a in different]
    assert state is not None
    assert not any(isinstance(x, (torch.Tensor, np.ndarray)) for x in state)  # nothing heavy


def test_the_seeds_of_predict_do_not_depend_on_the_number_of_rows() -> None:
    few, _ = agent().predict(batch(0, 1))
    many, _ = agent().predict(batch(0, 1, 2, 3))
    assert [a.tolist() for a in few] == [a.tolist() for a in many[:2]]


def test_every_row_and_every_episode_of_predict_has_a_seed_of_its_own() -> None:
    made = agent(sampling=SamplingParams(max_new_tokens=12))
    first, _ = made.predict(batch(0, 0, 0))
    second, _ = made.predict(batch(0, 0, 0))
    assert len({tuple(a.tolist()) for a in (*first, *second)}) == 6


def test_an_act_that_fails_can_be_made_again() -> None:
    made, other = agent(), agent()
    for one in (made, other):
        one.start(0, 3)
        one.start(1, 4)
        one.act([0, 1], batch(0, 1))
    with pytest.raises(ValueError, match="row 1: id 9999 is outside"):
        made.act([0, 1], [em.ids(5, 4), np.array([9999])])
    expected = other.act([0, 1], batch(5, 6))
    for turn, right in zip(made.act([0, 1], batch(5, 6)), expected):
        assert turn.token_ids.tolist() == right.token_ids.tolist()


def test_the_state_carries_the_context_and_episode_start_forgets_it() -> None:
    made = agent()
    _, state = made.predict(batch(0, 1))
    made.predict(batch(2, 3, length=2), state, np.array([False, True]))
    assert len(made.engine.context(0)) > 8 + 2
    assert made.engine.context(1)[:2].tolist() == em.ids(3, 2).tolist()


def test_no_state_and_no_marks_begin_every_row() -> None:
    made = agent()
    made.predict(batch(0, 1))
    made.predict(batch(2, 3))
    assert made.engine.context(0)[:8].tolist() == em.ids(2, 8).tolist()


def test_the_marks_count_even_where_the_caller_does_not_keep_the_state() -> None:
    made = agent()
    made.predict(batch(0), None, np.array([True]))
    made.predict(batch(1, length=2), None, np.array([False]))
    assert made.engine.context(0)[:8].tolist() == em.ids(0, 8).tolist()


def test_an_empty_observation_gets_an_empty_action_and_costs_nothing() -> None:
    made = agent()
    _, state = made.predict(batch(0, 1))
    before = made.stats.fed, made.stats.sampled
    actions, state = made.predict((np.zeros(0, np.int64),) * 2, state, np.array([False, False]))
    assert [a.tolist() for a in actions] == [[], []]
    assert (made.stats.fed, made.stats.sampled) == before
    actions, _ = made.predict((em.ids(4, 3), np.zeros(0, np.int64)), state, np.array([True, False]))
    assert len(actions[0]) > 0
    assert len(actions[1]) == 0


def test_deterministic_is_greedy() -> None:
    made = agent(sampling=SamplingParams(max_new_tokens=3))
    actions, _ = made.predict(batch(0), deterministic=True)
    plain = em.full_forward(MODEL, made.engine.context(0))[7:-1]
    assert actions[0].tolist() == plain.argmax(-1).tolist()


def test_a_single_observation_gets_a_single_action() -> None:
    action, state = agent().predict(em.ids(0, 8))
    assert action.ndim == 1
    equal, _ = agent().predict(np.stack(batch(0, 1)))
    assert isinstance(equal, tuple)
    assert equal[0].tolist() == action.tolist()
    ragged = np.empty(2, object)
    ragged[:] = [em.ids(0, 8), em.ids(1, 3)]
    assert agent().predict(ragged)[0][0].tolist() == action.tolist()
    with pytest.raises(ValueError, match="2 observations but episode_start has 1"):
        agent().predict(batch(0, 1), state, np.array([True]))


def test_stop_ids_come_from_the_generation_config_where_there_is_no_tokenizer() -> None:
    model = em.model()
    with pytest.raises(ValueError, match=r"nothing says where a turn ends.*pass tokenizer=\.\.\., or stop_ids"):
        LLMAgent(model)
    model.generation_config.eos_token_id = [4, 9]
    assert LLMAgent(model).stop_ids == {4, 9}


def test_new_weights_raise_the_version_on_every_completion() -> None:
    model = em.model()
    made = LLMAgent(model, stop_ids=[])
    made.start(0, 0)
    assert made.act([0], batch(0), SAMPLING)[0].weight_version == made.weight_version == 0
    assert made.update_weights(em.model(seed=1).state_dict()) == 1
    assert made.update_weights(None) == 2
    assert made.act([0], batch(0), SAMPLING)[0].weight_version == made.weight_version == 2


def test_a_stop_string_ends_a_turn_with_the_id_that_completes_it() -> None:
    from tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer))
    options: dict[str, Any] = {"sampling": SamplingParams(max_new_tokens=40), "stop_ids": ["<|im_end|>"]}
    prompts = batch(1, 2)
    free = LLMAgent(model, tokenizer, **options)
    for row in (0, 1):
        free.start(row, row)
    whole = free.act([0, 1], prompts)
    text = tokenizer.decode(whole[0].token_ids)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    assert stop in text[:-3]
    stopped = LLMAgent(model, tokenizer, stop_strings=["\n never \n", stop], **options)
    for row in (0, 1):
        stopped.start(row, row)
    turns = stopped.act([0, 1], prompts)
    for turn, full in zip(turns, whole, strict=True):
        ids = turn.token_ids.tolist()
        assert ids == full.token_ids.tolist()[: len(ids)]
        assert stop not in tokenizer.decode(ids[:-1])
    assert turns[0].finish_reason == "stop"
    assert stop in tokenizer.decode(turns[0].token_ids)
    stopped.start(0, 0)
    stopped.submit(0, prompts[0])  # without a common turn
    ended: list[Any] = []
    while not ended:
        ended = stopped.step()
    assert ended[0][1].token_ids.tolist() == turns[0].token_ids.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_strings": ["x"]}, "need the tokenizer"),
        ({"stop_strings": "x"}, "a list of texts"),
        ({"stop_strings": [""]}, "not empty"),
        ({"kv_tokens": 0}, "kv_tokens"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        agent(**options)


def test_a_budget_of_keys_and_values_changes_no_sample() -> None:
    turns = []
    for options in ({}, {"kv_tokens": 96, "max_running": 2}):
        made = agent(**options)
        for row in range(6):
            made.start(row, row)
        turns.append([t.token_ids.tolist() for t in made.act(range(6), batch(*range(6)))])
    assert turns[0] == turns[1]


def test_it_plays_a_tool_use_env_under_next_step_autoreset() -> None:
    from tiny import tiny_model, tiny_tokenizer

    from toolstep.envs import ToolUseVectorEnv

    tokenizer = tiny_tokenizer()
    made = LLMAgent(tiny_model(len(tokenizer)), tokenizer, sampling=SamplingParams(max_new_tokens=6))
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in made.stop_ids
    envs = ToolUseVectorEnv(2, [{"prompt": "1 + 1?", "answer": "2"}], max_turns=2, **made.env_kwargs)
    begun = 0
    try:
        observation, _ = envs.reset(seed=0)
        state, begin, ended = None, np.ones(2, bool), np.zeros(2, bool)
        for _ in range(5):
            actions, state = made.predict(observation, state, begin)
            for row in np.flatnonzero(begin):  # the context is the new prompt and the turn, nothing older
                expected = [*observation[row].tolist(), *actions[row].tolist()]
                assert made.engine.context(row).tolist() == expected
                begun += 1
            observation, _, terminated, truncated, _ = envs.step(actions)
            begin, ended = ended, terminated | truncated
        assert begun > 2
    finally:
        envs.close()


def test_it_runs_in_stable_baselines3s_evaluate_policy() -> None:
    from gymnasium import spaces
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecEnv

    class Episodes(VecEnv):
        """Row i's episodes last i + 2 turns; the next one's prompt comes with the `done` that ends the last."""

        def __init__(self) -> None:
            self.turn, self.seen = [0, 0], []
            space = spaces.Sequence(spaces.Discrete(em.VOCABULARY))
            super().__init__(2, space, space)

        def reset(self) -> tuple[np.ndarray, ...]:
            return batch(0, 1)

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            self.turn = [t + 1 for t in self.turn]
            dones = np.array([t == i + 2 for i, t in enumerate(self.turn)])
            self.turn = [0 if done else t for t, done in zip(self.turn, dones)]
            self.seen.append([len(made.engine.context(row)) for row in (0, 1)])
            observations = tuple(em.ids(i, 8 if done else 2) for i, done in enumerate(dones))
            return observations, np.array([len(a) for a in self.actions], float), dones, [{}, {}]

        def close(self) -> None: ...

        def get_attr(self, name: str, indices: Any = None) -> list[Any]:
            return [None, None]

        def set_attr(self, name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None, None]

        def env_is_wrapped(self, wrapper: Any, indices: Any = None) -> list[bool]:
            return [False, False]  # no Monitor: evaluate_policy counts episodes by `done`

    made = LLMAgent(MODEL, stop_ids=[], sampling=SAMPLING)
    envs = Episodes()
    mean, _ = evaluate_policy(made, envs, n_eval_episodes=4, deterministic=True, warn=False)
    assert 10 <= mean <= 15  # two or three turns of five ids
    assert envs.seen[:4] == [[13, 13], [20, 20], [13, 27], [20, 13]]
