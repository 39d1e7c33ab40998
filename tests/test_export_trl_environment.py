"""TRL's `environment_factory`: tools as methods, the score as the reward; in its trainer where it is installed."""

from __future__ import annotations

import inspect
import re
from typing import Any, Literal

import pytest
from export_cases import talker, tokenizer
from transformers.utils import get_json_schema

from toolstep.envs import ToolUseEnv, ToolUseVectorEnv
from toolstep.envs.tools import tool
from toolstep.rollout.export import ExportError, environment_factory, environment_reward, task_rows

ENVS = ["calculator", "unit_convert", "lookup", "assistant"]


def core(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema without what transformers cannot say: bounds, defaults, closed objects."""
    kept = ("type", "enum", "items", "properties", "required", "anyOf")
    out = {k: v for k, v in schema.items() if k in kept}
    if "properties" in out:
        out["properties"] = {k: core(v) for k, v in out["properties"].items()}
    if "items" in out:
        out["items"] = core(out["items"])
    if not out.get("required"):
        out.pop("required", None)
    return out


@pytest.mark.parametrize("name", ENVS)
def test_transformers_makes_the_tools_schemas_again_from_the_methods(name):
    env = ToolUseEnv(name)
    env.reset(seed=0)
    instance = environment_factory(lambda: ToolUseEnv(name))()
    for schema in env.schemas:
        told = schema["function"]
        made = get_json_schema(getattr(instance, told["name"]))["function"]
        assert made["name"] == told["name"]
        assert made["description"] == " ".join(told["description"].split())
        assert core(made["parameters"]) == core(told["parameters"])
        for argument, value in told["parameters"]["properties"].items():
            expected = " ".join(str(value.get("description") or argument).split())
            assert made["parameters"]["properties"][argument]["description"] == expected


@tool(run_in="inline")
def mixed(
    when: str, kind: Literal["a", "b"] = "a", many: list[int] | None = None, by: dict[str, float] | None = None
) -> str:
    """Takes: all kinds (of things).

    Args:
        when: First: what
            goes on.
        kind: One of two (choices are few).
        many: Some numbers.
    """
    return f"{when} {kind} {many} {by}"


def test_a_tool_with_all_kinds_of_arguments_can_be_shown_and_called():
    instance = environment_factory(lambda: ToolUseEnv([{"prompt": "?", "answer": "x"}], tools=[mixed]))()
    made = get_json_schema(instance.mixed)["function"]["parameters"]
    assert list(made["properties"]) == ["when", "kind", "many", "by"]
    assert made["properties"]["kind"]["enum"] == ["a", "b"]
    assert made["properties"]["when"]["description"] == "First: what goes on."
    assert made["required"] == ["when"]
    instance.reset(task_seed=0)
    assert instance.mixed(when="now", many=[1, 2]) == "now a [1, 2] None"
    assert "when" in instance.mixed(self=1)  # an error for the model to read, not an exception
    assert inspect.signature(instance.mixed).parameters["kind"].default == "a"


def play(instance: Any, *messages: Any) -> float | None:
    (reward,) = environment_reward(completions=[list(messages)], environments=[instance], prompts=[], unused=1)
    return reward


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def test_score_is_that_of_the_env_for_the_last_message():
    instance = environment_factory(lambda: ToolUseEnv("calculator", level=1))()
    for seed in (1, 2):
        row = task_rows(ToolUseVectorEnv(1, "calculator", level=1), 1, seed=seed)[0]
        assert instance.reset(**row) is None
        expression = re.search(r"What is (.*)\?", row["prompt"][-1]["content"]).group(1)
        result = instance.calculator(expression=expression)
        assert play(instance, answer(result)) == 1.0
        instance.reset(**row)
        assert play(instance, answer("0.5")) == 0.0


def test_conversation_that_ends_with_a_call_was_cut_and_gets_no_answers_reward():
    instance = environment_factory(lambda: ToolUseEnv("calculator", level=1))()
    instance.reset(task_seed=1)
    assert play(instance, {"role": "assistant", "content": "1", "tool_calls": [{}]}) == 0.0
    assert play(instance) == 0.0


def test_call_after_the_end_is_an_error_for_the_model():
    instance = environment_factory(lambda: ToolUseEnv("calculator", max_turns=1))()
    instance.reset(task_seed=1)
    assert instance.calculator(expression="1+1") == "2"
    with pytest.raises(RuntimeError, match="the episode is over"):
        instance.calculator(expression="1+1")
    assert play(instance, answer("2")) == 0.0


def test_failure_of_the_env_is_no_reward_at_all():
    def broken(record: Any) -> float:
        raise RuntimeError("the grader is down")

    instance = environment_factory(lambda: ToolUseEnv("calculator", reward=broken))()
    instance.reset(task_seed=1)
    assert play(instance, answer("2")) is None


def test_row_without_a_task_and_tools_that_trl_cannot_take_are_refused():
    made = environment_factory(lambda: ToolUseEnv("calculator"))
    with pytest.raises(ExportError, match=r"the row names no task: .* got columns \['prompt'\]"):
        made().reset(prompt=[])
    for name in ("reset", "_x", "a.b"):
        named = tool(mixed.function, name=name)
        with pytest.raises(ExportError, match="takes no environment with a tool named"):
            environment_factory(lambda named=named: ToolUseEnv([{"prompt": "?"}], tools=[named]))


def test_task_with_other_tools_is_refused_by_name():
    from toolstep.envs import Message, Task

    def task(seed: int) -> Task:
        return Task(f"t{seed}", (Message("user", "?"),))

    class Varying(ToolUseEnv):
        @property
        def schemas(self) -> list[dict[str, Any]]:
            return super().schemas if self.task.id == first else []

    env = ToolUseEnv(task, tools=[mixed])
    env.reset(seed=0)
    first = env.task.id
    instance = environment_factory(lambda: Varying(task, tools=[mixed]))()
    instance.reset(task_seed=0)
    with pytest.raises(ExportError, match=r"the same tools for all tasks, \['mixed'\], but task"):
        instance.reset(task_seed=5)


# ------------------------------------------------------------------------------------------------ the real trainer


def test_trainer_calls_the_tools_masks_their_results_and_gets_the_score(tmp_path, monkeypatch):
    """TRL's own loop; only the turns are written for the model: right ones in the first group, none in the second."""
    trl = pytest.importorskip("trl")
    from datasets import Dataset
    from trl.chat_template_utils import qwen3_chat_template

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    chat = tokenizer()
    monkeypatch.setattr(chat, "chat_template", qwen3_chat_template)
    seen = []

    class Scripted(trl.GRPOTrainer):
        def _generate_single_turn(self, prompt_ids: Any, *args: Any, **kwargs: Any) -> Any:
            turns = []
            for ids in prompt_ids:
                text = chat.decode(ids)
                question = re.findall(r"What is (.*)\?", text)[-1]
                results = re.findall(r"<tool_response>\n(.*)\n</tool_response>", text)
                call = f'{{"name": "calculator", "arguments": {{"expression": "{question}"}}}}'
                turns.append(results[-1] if results else f"<tool_call>\n{call}\n</tool_call>")
            out = [[*chat.encode(turn, add_special_tokens=False), chat.eos_token_id] for turn in turns]
            return out, None

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            seen.append(inputs)
            return super()._compute_loss(model, inputs)

    rows = task_rows(ToolUseVectorEnv(2, "calculator", level=1), 2, seed=3)
    trainer = Scripted(
        model=talker(),
        reward_funcs=environment_reward,
        args=trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=2,
            max_steps=1,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            disable_tqdm=True,
            max_completion_length=400,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=chat,
        environment_factory=environment_factory(lambda: ToolUseEnv("calculator", level=1)),
    )
    trainer.train()
    log = next(entry for entry in trainer.state.log_history if "reward" in entry)
    assert log["rewards/environment_reward/mean"] == 1.0
    assert log["tools/call_frequency"] == 1.0
    assert log["tools/failure_frequency"] == 0.0
    (inputs,) = seen
    for ids, mask, real in zip(inputs["completion_ids"], inputs["tool_mask"], inputs["completion_mask"]):
        real = real.bool()
        assert "<tool_response>" in chat.decode(ids[real & ~mask.bool()])
        assert "<tool_response>" not in chat.decode(ids[real & mask.bool()])
