"""Any gymnasium vector env as an SB3 VecEnv, bit for bit as DummyVecEnv over the same envs."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from toolstep.agents.sb3 import GymnasiumVecEnv
from toolstep.envs import ToolUseEnv, ToolUseVectorEnv

MODES = list(AutoresetMode)
ROWS = 3


class Walk(gym.Env):
    """Ends by itself and is cut off, at random; every number it shows depends on its generator and its actions."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1}
    render_mode = "rgb_array"
    tag = "none"

    def __init__(self, form: str = "box"):
        self.form = form
        box = spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.observation_space = {
            "box": box,
            "dict": spaces.Dict({"at": box, "side": spaces.Discrete(3)}),
            "discrete": spaces.Discrete(1000),
        }[form]
        self.action_space = spaces.Discrete(4)

    def _observe(self) -> Any:
        at = np.array([self.at, self.steps], np.float32)
        if self.form == "discrete":
            return np.int64(abs(self.at) * 10 % 1000)
        return at if self.form == "box" else {"at": at, "side": np.int64(self.steps % 3)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = float(self.np_random.normal()) + (options or {}).get("shift", 0.0)
        self.steps = 0
        return self._observe(), {"began": self.at, "options": str(options or {})}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.at += float(self.np_random.normal()) * (1 + int(action))
        draw = self.np_random.random()
        info = {"steps": self.steps, "word": f"w{self.steps}", "even": self.steps % 2 == 0, "nested": {"at": self.at}}
        return self._observe(), self.at / 3, bool(draw < 0.2), bool(0.15 < draw < 0.35), info

    def render(self) -> np.ndarray:
        return np.full((2, 2, 3), self.steps, np.uint8)

    def tell(self, word: str, times: int = 1) -> str:
        return f"{word * times}{self.steps}"


def same(a: Any, b: Any) -> bool:
    """Equal, in type, dtype and every bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and a == b


def assert_same(ours: Any, reference: Any, num_actions: int, steps: int) -> int:
    """Plays both with the same seeds and actions; returns how many episodes ended."""
    rng = np.random.default_rng(0)
    ended = 0
    for e in (ours, reference):
        e.seed(11)
    for begin in range(2):  # a second reset in the middle of episodes, without seeds
        assert same(ours.reset(), reference.reset())
        assert same(ours.reset_infos, reference.reset_infos)
        for step in range(steps):
            actions = rng.integers(num_actions, size=ours.num_envs)
            got, expected = ours.step(actions), reference.step(actions)
            for name, a, b in zip(("observations", "rewards", "dones", "infos"), got, expected):
                assert same(a, b), (begin, step, name, a, b)
            assert same(ours.reset_infos, reference.reset_infos), (begin, step)
            ended += int(got[2].sum())
    return ended


@pytest.mark.parametrize("form", ["box", "dict", "discrete"])
@pytest.mark.parametrize("mode", MODES)
def test_sync_is_bit_identical_to_dummy_vec_env(mode: AutoresetMode, form: str) -> None:
    fns = [partial(Walk, form)] * ROWS
    ours, reference = GymnasiumVecEnv(SyncVectorEnv(fns, autoreset_mode=mode)), DummyVecEnv(fns)
    assert assert_same(ours, reference, 4, 60) > 50
    ours.close()


@pytest.mark.parametrize(
    ("mode", "shared"),
    [(m, True) for m in MODES] + [(AutoresetMode.SAME_STEP, False), (AutoresetMode.DISABLED, False)],
)
def test_async_is_bit_identical_to_dummy_vec_env(mode: AutoresetMode, shared: bool) -> None:
    fns = [partial(Walk, "dict")] * 2
    ours = GymnasiumVecEnv(AsyncVectorEnv(fns, autoreset_mode=mode, shared_memory=shared))
    try:
        assert assert_same(ours, DummyVecEnv(fns), 4, 30) > 10
    finally:
        ours.close()


@pytest.mark.parametrize("mode", MODES)
def test_our_vector_env_is_bit_identical_to_dummy_vec_env(mode: AutoresetMode) -> None:
    options = {"view": "menu", "max_turns": 4, "level": 1}
    ours = GymnasiumVecEnv(ToolUseVectorEnv(ROWS, "lookup", autoreset_mode=mode, **options))
    reference = DummyVecEnv([lambda: ToolUseEnv("lookup", **options)] * ROWS)
    # By their own seeds: the reference's envs are separate objects, the rows of ours share theirs.
    assert assert_same(ours, reference, 19, 12) > 10
    ours.close()
    reference.close()


@pytest.mark.parametrize("mode", MODES)
def test_buffers_that_are_written_over_are_copied(mode: AutoresetMode) -> None:
    fns = [partial(Walk, "box")] * ROWS
    ours = GymnasiumVecEnv(SyncVectorEnv(fns, autoreset_mode=mode, copy=False))
    ours.seed(3)
    first = ours.reset()
    kept = first.copy()
    last = [ours.step(np.zeros(ROWS, int)) for _ in range(20)]
    assert np.array_equal(first, kept)
    reference = DummyVecEnv(fns)
    reference.seed(3)
    reference.reset()
    assert same(last, [reference.step(np.zeros(ROWS, int)) for _ in range(20)])


@pytest.mark.parametrize("mode", MODES)
def test_rows_may_be_reset_with_options_of_their_own(mode: AutoresetMode) -> None:
    fns = [Walk] * ROWS
    ours, reference = GymnasiumVecEnv(SyncVectorEnv(fns, autoreset_mode=mode)), DummyVecEnv(fns)
    for options in ([{"shift": 5.0}, {}, {"shift": 7.0}], {"shift": 1.0}, [{}, {"shift": 2.0}, {}], None):
        seeded = options != [{}, {"shift": 2.0}, {}]
        for e in (ours, reference):
            if seeded:
                e.seed(5)
            e.set_options(options)
        got, expected = ours.reset(), reference.reset()
        assert same(got, expected)
        assert [i["began"] for i in ours.reset_infos] == [i["began"] for i in reference.reset_infos]
        for e in (ours, reference):
            e.step(np.ones(ROWS, int))


def test_learning_through_the_adapter_is_bit_identical() -> None:
    from stable_baselines3 import PPO

    options = {"view": "menu", "level": 1}

    def learned(env: Any) -> list[np.ndarray]:
        model = PPO("MlpPolicy", env, n_steps=16, batch_size=32, n_epochs=2, seed=3, device="cpu")
        model.learn(128)
        env.close()
        return [p.detach().numpy() for p in model.policy.parameters()]

    def envs(mode: str) -> GymnasiumVecEnv:
        return GymnasiumVecEnv(
            gym.make_vec("toolstep/UnitConvert-v0", num_envs=4, vectorization_mode=None, autoreset_mode=mode, **options)
        )

    once = learned(envs("SameStep"))
    for other in (
        envs("SameStep"),
        envs("NextStep"),
        envs("Disabled"),
        DummyVecEnv([lambda: ToolUseEnv("unit_convert", **options)] * 4),
    ):
        assert same(learned(other), once)


def test_statistics_of_a_gymnasium_wrapper_stay_with_the_episode_that_ended() -> None:
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    options = {"view": "menu", "max_turns": 3}
    for mode in MODES:
        envs = ToolUseVectorEnv(ROWS, "lookup", autoreset_mode=mode, **options)
        ours = GymnasiumVecEnv(RecordEpisodeStatistics(envs))
        monitored = VecMonitor(DummyVecEnv([lambda: ToolUseEnv("lookup", **options)] * ROWS))
        for e in (ours, monitored):
            e.seed(1)
            e.reset()
        rng = np.random.default_rng(0)
        seen = 0
        for _ in range(12):
            actions = rng.integers(19, size=ROWS)
            infos, expected = (e.step(actions)[3] for e in (ours, monitored))
            for a, b in zip(infos, expected):
                assert ("episode" in a) == ("episode" in b)
                if "episode" in b:
                    seen += 1
                    assert (a["episode"]["l"], a["episode"]["r"]) == (b["episode"]["l"], b["episode"]["r"])
            assert not any("episode" in i for i in ours.reset_infos)
        assert seen > 10
        monitored.close()
        ours.close()


@pytest.mark.parametrize("mode", MODES)
def test_statistics_that_gymnasium_counts_wrong_are_refused(mode: AutoresetMode) -> None:
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    envs = RecordEpisodeStatistics(SyncVectorEnv([Walk] * ROWS, autoreset_mode=mode))
    if mode is AutoresetMode.SAME_STEP:
        GymnasiumVecEnv(envs)
        return
    with pytest.raises(ValueError, match="VecMonitor"):
        GymnasiumVecEnv(envs)


@pytest.mark.parametrize("kind", ["sync", "async", "ours"])
def test_attributes_and_methods_of_rows(kind: str) -> None:
    if kind == "ours":
        envs: VectorEnv = ToolUseVectorEnv(ROWS, "lookup", view="menu")
    else:
        make: Any = SyncVectorEnv if kind == "sync" else AsyncVectorEnv
        envs = make([Walk] * ROWS, autoreset_mode=AutoresetMode.SAME_STEP)
    ours = GymnasiumVecEnv(envs)
    try:
        ours.reset()
        if kind == "ours":
            assert [m.shape for m in ours.env_method("action_masks", indices=[2, 0])] == [(19,)] * 2
            assert ours.get_attr("turns", 1) == [0]
            assert not ours.has_attr("nothing")
            return
        ours.step(np.zeros(ROWS, int))
        ours.set_attr("tag", ["a", "list"])
        ours.set_attr("tag", "one", indices=[1])
        assert ours.get_attr("tag") == [["a", "list"], "one", ["a", "list"]]
        assert ours.env_method("tell", "x", times=2) == [f"xx{s}" for s in ours.get_attr("steps")]
        if kind == "sync":
            assert ours.env_method("tell", "y", indices=1) == [f"y{ours.get_attr('steps')[1]}"]
            assert ours.env_is_wrapped(gym.wrappers.TimeLimit) == [False] * ROWS
            assert ours.get_images()[0].shape == (2, 2, 3)
            assert ours.render().shape == (4, 4, 3)
        else:
            with pytest.raises(NotImplementedError, match="in all rows at once"):
                ours.env_method("tell", "y", indices=1)
    finally:
        ours.close()


def test_wrapped_rows_are_seen() -> None:
    from gymnasium.wrappers.vector import RecordEpisodeStatistics

    envs = SyncVectorEnv([lambda: gym.wrappers.TimeLimit(Walk(), 3), Walk], autoreset_mode=AutoresetMode.SAME_STEP)
    ours = GymnasiumVecEnv(RecordEpisodeStatistics(envs))
    assert ours.env_is_wrapped(gym.wrappers.TimeLimit) == [True, False]
    assert ours.env_is_wrapped(RecordEpisodeStatistics, indices=[1]) == [True]


@pytest.mark.parametrize("view", ["text", "messages"])
def test_an_env_that_sb3_cannot_learn_from_points_to_the_menu(view: str) -> None:
    envs = ToolUseVectorEnv(2, "calculator", view=view)
    with pytest.raises(TypeError, match=r'cannot learn from observations .*view="menu".*any_space=True'):
        GymnasiumVecEnv(envs)
    GymnasiumVecEnv(envs, any_space=True).close()


def test_what_is_no_vector_env_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected a gymnasium\.vector\.VectorEnv, got Walk"):
        GymnasiumVecEnv(Walk())  # type: ignore[arg-type]
    silent = SyncVectorEnv([Walk])
    del silent.metadata["autoreset_mode"]
    with pytest.raises(ValueError, match="must be an AutoresetMode, got None"):
        GymnasiumVecEnv(silent)


def test_async_without_shared_memory_is_refused_in_the_mode_in_which_it_is_broken() -> None:
    envs = AsyncVectorEnv([Walk], shared_memory=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    try:
        with pytest.raises(ValueError, match="swallows the first action"):
            GymnasiumVecEnv(envs)
    finally:
        envs.close()


class Deaf(SyncVectorEnv):
    """Resets everything, as Gymnasium's own CartPoleVectorEnv does."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset(seed=seed)


def test_a_vector_env_that_ignores_the_mask_is_found_out() -> None:
    def play(envs: GymnasiumVecEnv) -> None:
        envs.seed(0)
        envs.reset()
        for _ in range(20):
            envs.step(np.zeros(ROWS, int))

    play(GymnasiumVecEnv(SyncVectorEnv([Walk] * ROWS)))
    with pytest.raises(ValueError, match=r"reset row \d too .* it ignores options\['reset_mask'\]"):
        play(GymnasiumVecEnv(Deaf([Walk] * ROWS)))
