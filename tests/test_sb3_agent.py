"""SB3 models as agents, read without unpickling; and our agents in SB3's evaluate_policy."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv

from toolstep.agents import OracleAgent, RandomAgent, ReplayAgent, make_agent
from toolstep.agents.sb3 import GymnasiumVecEnv, SB3Agent, SB3ZipError, SpacesDiffer, load_policy
from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.rollout.cli import main
from toolstep.rollout.evaluate import evaluate

LOOKUP = {"view": "menu", "level": 1}
ALGORITHMS = ["ppo", "a2c", "dqn", "maskable", "ppo-relu"]


def make_model(name: str) -> Any:
    env = ToolUseEnv("lookup", **LOOKUP)
    if name == "maskable":
        return pytest.importorskip("sb3_contrib").MaskablePPO("MlpPolicy", env, seed=0, device="cpu")
    if name == "dqn":
        return DQN("MlpPolicy", env, seed=0, device="cpu", buffer_size=100, policy_kwargs={"net_arch": [16, 24, 8]})
    if name == "ppo-relu":
        kwargs = {"net_arch": {"pi": [32], "vf": [16, 8]}, "activation_fn": torch.nn.ReLU, "ortho_init": False}
        return PPO("MlpPolicy", env, seed=0, device="cpu", policy_kwargs=kwargs)
    return {"ppo": PPO, "a2c": A2C}[name]("MlpPolicy", env, seed=0, device="cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zip of an untrained PPO."""
    path = tmp_path_factory.mktemp("sb3") / "ppo.zip"
    make_model("ppo").save(path)
    return path


def changed(source: Path, path: Path, change: Callable[[dict[str, Any]], None] | None = None, **members: bytes) -> Path:
    """A copy of a zip with its JSON changed and members replaced."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            content = members.pop(name.replace(".", "_"), old.read(name))
            if name == "data" and change is not None:
                data = json.loads(content)
                change(data)
                content = json.dumps(data).encode()
            new.writestr(name, content)
    assert not members
    return path


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "boom")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_file_gives_the_choices_of_the_model_that_was_saved(name: str, tmp_path: Path) -> None:
    model = make_model(name)
    model.save(tmp_path / "model.zip")
    agent = SB3Agent.load(tmp_path / "model.zip")
    seen = np.random.default_rng(0).normal(0, 30, (64, 48)).astype(np.float32)  # that an untrained net tells apart
    live = SB3Agent(model)
    assert live.masked == agent.masked == (name == "maskable")
    agent.masked = live.masked = False
    expected = model.predict(seen, deterministic=True)[0]
    assert len(set(expected.tolist())) > 1
    for one in (agent, live):
        assert np.array_equal(one.predict(seen)[0], expected)
        assert one.predict(seen[0])[0] == expected[0]
        assert one.predict(seen)[0].dtype == np.int64


def test_nothing_of_a_file_is_unpickled(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    bomb = base64.b64encode(cloudpickle.dumps(Bomb(mark))).decode()

    def arm(data: dict[str, Any]) -> None:
        armed = [entry for entry in data.values() if isinstance(entry, dict) and ":serialized:" in entry]
        assert len(armed) > 5
        for entry in armed:
            entry[":serialized:"] = bomb
        data["extra"] = {":type:": "x", ":serialized:": bomb}

    path = changed(saved, tmp_path / "armed.zip", arm)
    agent = SB3Agent.load(path)
    seen = np.random.default_rng(0).random((8, 48), dtype=np.float32)
    assert np.array_equal(agent.predict(seen)[0], SB3Agent.load(saved).predict(seen)[0])
    assert not mark.exists()
    cloudpickle.loads(base64.b64decode(bomb))
    assert mark.exists()  # it would have


def test_weights_that_are_more_than_tensors_are_refused_and_not_run(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    buffer = io.BytesIO()
    torch.save({"action_net.weight": Bomb(mark)}, buffer)
    path = changed(saved, tmp_path / "armed.zip", policy_pth=buffer.getvalue())
    with pytest.raises(SB3ZipError, match="more than tensors"):
        load_policy(path)
    assert not mark.exists()


def weights(**change: torch.Tensor) -> bytes:
    state = make_model("ppo").policy.state_dict()
    state.update({name.replace("__", "."): value for name, value in change.items()})
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def set_in(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (set_in("policy_class", "__module__", to="theirs"), r"the policy is theirs.ActorCriticPolicy"),
        (set_in("policy_class", "__init__", to="<function Mine.__init__ at 0x0>"), r"policies\.Mine"),
        (set_in("policy_class", to="MlpPolicy"), "has no 'policy_class'"),
        (set_in("policy_kwargs", to={"activation_fn": "<class 'os.system'>"}), "activation_fn=<class 'os.system'>"),
        (set_in("policy_kwargs", to={"features_extractor_class": "x"}), "features_extractor_class=x"),
        (set_in("use_sde", to=True), "without gSDE"),
        (set_in("observation_space", ":type:", to="<class 'gymnasium.spaces.dict.Dict'>"), "not a Box or a Discrete"),
        (set_in("observation_space", "low", to="[0. 0. ... 1.]"), "bounds are cut"),
        (set_in("observation_space", "dtype", to="nonsense"), "not told in words"),
        (set_in("observation_space", "_shape", to=[10**9]), "has 1000000000 numbers, the weights are for 48"),
        (set_in("action_space", "n", to="1000000000"), "has 1000000000 numbers, the weights are for 19"),
        (set_in("observation_space", "dtype", to="9" * 5000), "not told in words"),
        (set_in("policy_kwargs", "activation_fn", to=["x"]), "activation_fn="),
        (set_in("action_space", "n", to="9" * 5000), "not told in words"),
        (set_in("action_space", to={}), "not a Box or a Discrete"),
        (set_in("action_space", to=[]), "has no 'action_space'"),
    ],
)
def test_what_cannot_be_told_without_unpickling_is_refused_by_name(
    change: Callable[[dict[str, Any]], None], says: str, saved: Path, tmp_path: Path
) -> None:
    path = changed(saved, tmp_path / "other.zip", change)
    with pytest.raises(SB3ZipError, match=says) as caught:
        load_policy(path)
    assert "other.zip" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"extra": torch.zeros(3)}, "do not fit"),
        ({"action_net__bias": torch.zeros(7)}, "do not fit"),
        # Sizes that no layers of one net have, so that none of them is built.
        ({"mlp_extractor__policy_net__2__weight": torch.zeros(64, 9)}, "not those of a plain"),
        ({"action_net__weight": torch.zeros(1, 1).expand(100_000, 100_000)}, "no state dict of tensors"),
        ({"action_net__weight": torch.zeros(19, 64).to_sparse()}, "no state dict of tensors"),
        ({"action_net__weight": torch.zeros(19, 64, device="meta")}, "no state dict of tensors"),
        ({f"mlp_extractor__policy_net__{'9' * 5000}__weight": torch.zeros(3, 3)}, "do not fit"),
        ({"action_net__weight": torch.full((19, 64), float("nan"))}, "NaN or infinite weights; did its training"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    change: dict[str, torch.Tensor], says: str, saved: Path, tmp_path: Path
) -> None:
    with pytest.raises(SB3ZipError, match=says):
        load_policy(changed(saved, tmp_path / "other.zip", policy_pth=weights(**change)))


def test_a_policy_of_ones_own_is_loaded_by_its_owner(tmp_path: Path) -> None:
    class Own(FlattenExtractor):
        pass

    env = ToolUseEnv("lookup", **LOOKUP)
    model = PPO("MlpPolicy", env, policy_kwargs={"features_extractor_class": Own}, device="cpu")
    model.save(tmp_path / "own.zip")
    with pytest.raises(SB3ZipError, match=r"features_extractor_class.*you trust.*SB3Agent\(PPO\.load\(path\)\)"):
        load_policy(tmp_path / "own.zip")
    assert SB3Agent(PPO.load(tmp_path / "own.zip", device="cpu")).predict(np.zeros(48, np.float32))[0] in range(19)


def test_a_file_that_is_no_model_is_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file .*looked for a stable-baselines3 model"):
        load_policy(tmp_path / "none.zip")
    for name, content in (("text.zip", b"hello"), ("cut.zip", saved.read_bytes()[:-100])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(SB3ZipError, match=f"{name} is no model that stable-baselines3 saved"):
            load_policy(tmp_path / name)
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as archive:
        archive.writestr("data", "[]")
    for path in (tmp_path / "empty.zip", changed(saved, tmp_path / "deep.zip", data=b"[" * 100_000)):
        with pytest.raises(SB3ZipError, match="is no model"):
            load_policy(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_zip_of_any_compression_is_refused(saved: Path, tmp_path: Path, method: int) -> None:
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    load_policy(path)
    content = path.read_bytes()
    first, listed = content.index(b"PK\x03\x04"), content.index(b"PK\x01\x02")
    inside = first + 60
    for at, value in ((inside, bytes(64)), (listed + 8, b"\x01"), (listed + 10, b"\x63"), (listed + 6, b"\xff")):
        path.write_bytes(content[:at] + value + content[at + len(value) :])  # data, encrypted, method, version
        with pytest.raises(SB3ZipError, match=r"packed\.zip is no model that stable-baselines3 saved"):
            load_policy(path)


@pytest.mark.parametrize(("rows", "temperature"), [(1, 1.0), (3, 1.0), (3, 0.0)])
def test_an_evaluation_does_not_depend_on_the_rows(saved: Path, rows: int, temperature: float) -> None:
    def play(num_envs: int, seed: int) -> list[Any]:
        envs = ToolUseVectorEnv(num_envs, "lookup", **LOOKUP)
        done: list[Any] = []
        agent = make_agent(f"sb3:{saved}")
        agent.temperature = temperature
        evaluate(envs, agent, 6, seed=seed, on_episode=done.append)
        envs.close()
        return [t.messages for t in sorted(done, key=lambda t: t.seed)]

    assert play(rows, 0) == play(4, 0)
    if temperature:
        assert play(rows, 0) != play(rows, 1)


def test_a_masked_model_chooses_what_is_on_offer() -> None:
    model = make_model("maskable")
    for temperature in (0.0, 1.0):
        for made in (ToolUseVectorEnv(3, "lookup", **LOOKUP), gym.make_vec("toolstep/Lookup-v0", 3, "sync", **LOOKUP)):
            done: list[Any] = []
            evaluate(made, SB3Agent(model, temperature=temperature), 5, on_episode=done.append)
            made.close()
            calls = {k for t in done for k in t.metrics if k.startswith("calls/")}
            assert calls == {"calls/ok"}
    env = gym.make("toolstep/Lookup-v0", **LOOKUP)
    agent = SB3Agent(model)
    obs, info = env.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"call bind\(envs\)"):
        agent.predict(obs)
    agent.bind(env)
    assert info["action_mask"][agent.predict(obs)[0]] == 1
    env.close()


def test_other_spaces_are_refused_with_both(saved: Path) -> None:
    agent = SB3Agent.load(saved)
    for envs in (ToolUseVectorEnv(2, "calculator", view="menu"), ToolUseEnv("calculator", view="menu")):
        with pytest.raises(SpacesDiffer, match=r"\(48,\).*Discrete\(19\).*\(31,\).*Discrete\(14\)"):
            agent.bind(envs)
        envs.close()
    text = ToolUseVectorEnv(2, "lookup")
    with pytest.raises(SpacesDiffer, match="UnicodeText"):
        evaluate(text, agent, 1)
    text.close()


def test_an_algorithm_without_choices_is_no_sb3_agent() -> None:
    box = spaces.Box(-1, 1, (2,), np.float32)
    policy = ActorCriticPolicy(box, box, lambda _: 0.0)
    with pytest.raises(TypeError, match="Discrete actions, got ActorCriticPolicy with Box"):
        SB3Agent(policy)


def test_a_model_without_a_wrapper_is_an_agent_too() -> None:
    envs = ToolUseVectorEnv(2, "lookup", **LOOKUP)
    assert evaluate(envs, make_model("ppo"), 3).episodes == 3
    envs.close()


COLOURS = [{"prompt": f"Say {c}.", "answer": c} for c in ("red", "green", "blue")]


@pytest.mark.parametrize(
    ("name", "steps", "settings"),
    [
        ("ppo", 1024, {"n_steps": 16, "batch_size": 64, "learning_rate": 3e-3}),
        ("a2c", 2000, {"n_steps": 5, "learning_rate": 1e-3}),
        ("dqn", 1600, {"learning_starts": 80, "learning_rate": 3e-3, "target_update_interval": 80, "train_freq": 1}),
        ("maskable", 1024, {"n_steps": 16, "batch_size": 64, "learning_rate": 3e-3}),
    ],
)
def test_each_algorithm_learns_what_the_task_asks_for(name: str, steps: int, settings: dict[str, Any]) -> None:
    def make(rows: int) -> ToolUseVectorEnv:
        return ToolUseVectorEnv(rows, COLOURS, view="menu", menu=[{"answer": task["answer"]} for task in COLOURS])

    classes = {"ppo": PPO, "a2c": A2C, "dqn": DQN}
    kind: Any = pytest.importorskip("sb3_contrib").MaskablePPO if name == "maskable" else classes[name]
    model = kind("MlpPolicy", GymnasiumVecEnv(make(8)), seed=0, device="cpu", **settings)
    model.learn(steps)
    envs = make(3)
    assert evaluate(envs, SB3Agent(model), 12).success_rate == 1.0
    envs.close()


# ---------------------------------------------------------------- the command line
def run(*argv: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    return int(caught.value.code or 0)


def test_eval_takes_a_zip_and_its_episodes_replay(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    played = ["eval", "lookup", "--agent", f"sb3:{saved}", "--episodes", "3", "--level", "1", "--out", folder, "--json"]
    assert run(*played) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["summary"]["episodes"] == 3
    assert run("replay", f"{folder}/episodes.jsonl") == 0
    assert "replayed 3 episodes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("eval", "calculator", "--agent", "sb3:SAVED"), "(48,), float32) and actions Discrete(19), but the env has"),
        (("eval", "sql", "--agent", "sb3:SAVED"), "'toolstep/SQL-v0' has no menu"),
        (("eval", "lookup", "--agent", "sb3:none.zip"), "there is no file none.zip"),
        (("eval", "lookup", "--agent", "sb3:"), "sb3:PATH.zip"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(
    argv: tuple[str, ...], says: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*(a.replace("SAVED", str(saved)) for a in argv)) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


# ------------------------------------------------------------------ evaluate_policy
def vec_env(kind: str) -> Any:
    if kind == "dummy":
        return DummyVecEnv([lambda: ToolUseEnv("lookup", **LOOKUP)] * 2)
    return GymnasiumVecEnv(gym.make_vec("toolstep/Lookup-v0", num_envs=2, autoreset_mode=kind, **LOOKUP))


@pytest.mark.parametrize("kind", ["dummy", "SameStep", "NextStep", "Disabled"])
def test_scripted_agents_and_models_run_in_evaluate_policy(kind: str, saved: Path) -> None:
    envs = vec_env(kind)
    found = {}
    for name, agent in (("oracle", OracleAgent()), ("random", RandomAgent(1)), ("sb3", SB3Agent.load(saved))):
        agent.bind(envs)
        envs.seed(0)
        found[name] = evaluate_policy(agent, envs, 4, return_episode_rewards=True, warn=False)
    assert found["oracle"] == ([1.0] * 4, [3] * 4)
    assert len(found["random"][0]) == len(found["sb3"][0]) == 4
    envs.close()


def test_agents_of_text_and_tokens_run_in_evaluate_policy() -> None:
    envs = GymnasiumVecEnv(ToolUseVectorEnv(2, "calculator", level=1), any_space=True)
    envs.seed(0)
    envs.reset()
    answers = [[[str(envs.get_attr("task", i)[0].answer)], ["no"]] for i in range(2)]
    envs.seed(0)
    rewards, lengths = evaluate_policy(ReplayAgent(answers), envs, 4, return_episode_rewards=True, warn=False)
    assert sorted(rewards) == [0.0, 0.0, 1.0, 1.0]
    assert lengths == [1] * 4
    envs.close()
    agent = make_agent("tiny-sft")
    envs = GymnasiumVecEnv(ToolUseVectorEnv(2, "calculator", level=1, **agent.env_kwargs), any_space=True)
    envs.seed(0)
    rewards, lengths = evaluate_policy(agent, envs, 2, return_episode_rewards=True, warn=False)
    assert (rewards, lengths) == ([1.0, 1.0], [2, 2])
    envs.close()
