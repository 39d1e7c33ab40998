"""From an address to a server that is known: its dialect, its model, and whether it can be trained with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from toolstep.agents.base import SamplingParams
from toolstep.agents.server.address import Address
from toolstep.agents.server.client import Client
from toolstep.agents.server.dialect import Ask, Dialect, LogprobsMode, part
from toolstep.agents.server.errors import ServerError
from toolstep.agents.server.llamacpp import LlamaCpp
from toolstep.agents.server.logprobs import CERTAIN, GREEDY, measure
from toolstep.agents.server.retry import Retries
from toolstep.agents.server.sglang import SGLang
from toolstep.agents.server.vllm import VLLM

# Also by the name that each writes into `owned_by` of /v1/models.
DIALECTS: dict[str, type[Dialect]] = {"vllm": VLLM, "sglang": SGLang, "llamacpp": LlamaCpp, "toolstep": VLLM}
# Numbers, spaces, accents, another script and an emoji: no two tokenizers cut all of it in one way.
_SAMPLE = "Sum 12345 + 0.5 = naïve(\n\tx)  你好 🙂 Ünder_score, don't"
_PROMPTS = ("The", "I think that the", "Once upon a time")


def make_client(where: Address, retries: Retries | None = None, default_key: str | None = None) -> Client:
    """The client that an address asks for.  default_key: the variable that its key is in, where it names none."""
    options = where.options
    rule = retries if retries is not None else Retries()
    if "retries" in options:
        rule = replace(rule, most=options["retries"])
    given = {name: options[name] for name in ("concurrency", "timeout", "deadline") if name in options}
    return Client(where.url, key=where.key(default_key), retries=rule, **given)


def find_dialect(client: Client, name: str | None, model: str) -> Dialect:
    """Ask what is served.  name: of `DIALECTS`; None: by what the server says.  model: "": its first.

    Raises ServerError, and ValueError for a name or a model that is not there.
    """
    if name is not None and name not in DIALECTS:
        raise ValueError(f"unknown dialect {name!r}; known: {', '.join(DIALECTS)}")
    cards = part(client.get("/v1/models"), "data")
    cards = [c for c in cards if isinstance(c, dict) and c.get("id")] if isinstance(cards, list) else []
    if not cards:
        raise ValueError(f"{client.url}/v1/models lists no model; is this a server of models?")
    card = next((c for c in cards if not model or c["id"] == model), None)
    if card is None:
        raise ValueError(f"{client.url} has no model {model!r}; it has {', '.join(str(c['id']) for c in cards)}")
    owner = str(card.get("owned_by", ""))
    if name is None and owner not in DIALECTS:
        raise ValueError(
            f"{client.url} does not say what it is (owned_by is {owner!r}); add ?dialect=, one of {', '.join(DIALECTS)}"
        )
    kind = DIALECTS[owner if name is None else name]
    return kind(kind.look(client.get, card))


def check_tokenizer(client: Client, dialect: Dialect, tokenizer: Any) -> bool:
    """Compare the server's ids of a text with the tokenizer's.  False where the server cannot be asked.

    Raises ValueError where they differ.
    """
    request = dialect.tokenize(_SAMPLE)
    try:
        theirs = dialect.tokenized(client.post(request.path, request.body).result())
    except ServerError as error:
        if error.kind in ("bad_reply", "404", "405", "501"):
            return False
        raise
    ours = [int(i) for i in tokenizer(_SAMPLE, add_special_tokens=False)["input_ids"]]
    special = set(tokenizer.all_special_ids)  # some put a special id in front, or behind
    if [i for i in theirs if i not in special] != ours:
        raise ValueError(
            f"the server {client.url} turns text into other ids than the tokenizer of the env: {theirs[:12]}... and "
            f"{ours[:12]}...; name the model's own by ?tokenizer=FOLDER_OR_ID"
        )
    return True


def check_logprobs(client: Client, dialect: Dialect, tokenizer: Any) -> LogprobsMode:
    """Sample an id or two, to see that ids and log-probs come, and of which distribution these are.

    Raises ValueError where something is missing; the message says what to set.
    """

    def sample(context: list[int], params: SamplingParams) -> float:
        ask = Ask(context, params, 1, seed=1)
        reply = client.run(dialect.sample(ask, client.send)).result()
        if not reply.logprobs or len(reply.logprobs) != len(reply.token_ids):
            raise ValueError(
                f"{client.url} tells no log-probabilities, so nothing can be trained on its turns: {dialect.needs}; to "
                "evaluate only, add ?logprobs=off"
            )
        return reply.logprobs[0]

    context: list[int] = []
    for prompt in _PROMPTS:
        context = [int(i) for i in tokenizer(prompt)["input_ids"]]
        if sample(context, GREEDY) < CERTAIN:
            break
    if not dialect.measured:
        return "processed"
    return measure(lambda params: sample(context, params))
