"""TRL's GRPOTrainer learns from a ToolUseVectorEnv; the rollouts are this library's.

    pip install '.[trl]'
    python examples/trl_grpo.py                            # a tiny random Llama, about a minute on a CPU
    python examples/trl_grpo.py --model smollm2 --shots 2  # a chat model, rewarded for right answers; minutes a step

The tiny model cannot do arithmetic, so it is rewarded for answering in digits, which it learns in 20 steps.
"""

from __future__ import annotations

import argparse
from typing import Any

from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from trl import GRPOConfig, GRPOTrainer

from toolstep.agents import LLMAgent, SamplingParams, load_model
from toolstep.envs import EpisodeRecord, ToolUseVectorEnv
from toolstep.envs.chat.builtin import CHATML_HERMES
from toolstep.envs.chat.tokenizer import load_tokenizer
from toolstep.rollout.export import env_reward, rollout_func, task_rows


def tiny_tokenizer() -> Any:
    """Bytes as tokens, and two control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        chat_template=CHATML_HERMES,
    )


def tiny_model(vocabulary: int) -> Any:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    )
    return LlamaForCausalLM(config)


def share_of_digits(record: EpisodeRecord) -> float:
    """How much of the answer is digits, in [0, 1]."""
    return sum(c in "0123456789" for c in record.answer) / max(len(record.answer), 1)


def train(model: str = "tiny", steps: int = 20, tasks: int = 16, group_size: int = 8, shots: int = 0) -> list[float]:
    """The mean reward of each step."""
    set_seed(0)
    tiny = model == "tiny"
    tokenizer = tiny_tokenizer() if tiny else load_tokenizer(model)
    learner = tiny_model(len(tokenizer)) if tiny else load_model(model, "cpu")
    # The agent samples from the very module that the trainer updates.
    agent = LLMAgent(learner, tokenizer, sampling=SamplingParams(max_new_tokens=8 if tiny else 64))
    options: dict[str, Any] = {"reward": share_of_digits} if tiny else {}
    envs = ToolUseVectorEnv(
        2 * group_size,
        "calculator",
        level=1,
        shots=shots,
        max_turns=4,
        autoreset_mode="SameStep",
        **agent.env_kwargs,
        **options,
    )
    trainer = GRPOTrainer(
        model=learner,
        reward_funcs=env_reward,
        train_dataset=Dataset.from_list(task_rows(envs, tasks)),
        processing_class=tokenizer,
        rollout_func=rollout_func(envs, agent),
        args=GRPOConfig(
            output_dir="runs/trl_grpo",
            max_steps=steps,
            per_device_train_batch_size=2 * group_size,
            num_generations=group_size,
            learning_rate=2e-2 if tiny else 2e-6,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
    )
    try:
        trainer.train()
    finally:
        envs.close()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="tiny, smollm2, or a folder with a model")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--shots", type=int, default=0, help="solved examples before each task")
    args = parser.parse_args()
    rewards = train(args.model, args.steps, args.tasks, args.group_size, args.shots)
    for step, reward in enumerate(rewards, start=1):
        print(f"step {step:3}  mean reward {reward:.3f}")


if __name__ == "__main__":
    main()
