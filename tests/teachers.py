"""A stand-in for a teacher's SGLang server, in a thread of this process."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from served import Served

VOCABULARY = 40


def log_prob(tokens: list[int], place: int, temperature: float) -> float:
    """Of the token at ``place`` after those before it."""
    return -(1 + tokens[place] + 0.01 * sum(tokens[:place])) / temperature


@dataclass
class Server:
    """What it answers can be changed.

    Attributes:
        vocabulary, longest: tokens that it knows and that a sample may have.
        scales: it heeds the temperature of an input.
        words: its tokenizer; None: it does not tell.
        serves: its model, as it says.
        spoil: what becomes of the entries that it would answer.
        fail: statuses of its next answers, 0: it hangs up.
        asked: bodies that /generate got.
        most: requests at once.
    """

    url: str = ""
    vocabulary: int = VOCABULARY
    longest: int = 100
    scales: bool = False
    words: Callable[[str], list[int]] | None = None
    serves: str = "teacher"
    spoil: Callable[[list[Any]], list[Any]] = lambda entries: entries
    fail: list[int] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0
    busy: int = 0

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        bias = body["sampling_params"].get("logit_bias", {})
        if any(int(token) >= self.vocabulary for token in bias):
            told = f"logit_bias must has keys in [0, {self.vocabulary - 1}], got {next(iter(bias))}."
            return web.json_response({"error": {"message": told}}, status=400)
        self.asked.append(body)
        if len(body["input_ids"]) > 1 and self.fail:
            status = self.fail.pop(0)
            if status == 0:
                assert request.transport
                request.transport.close()
                return web.Response()
            return web.json_response({"error": {"message": f"status {status}"}}, status=status)
        self.busy += 1
        self.most = max(self.most, self.busy)
        await asyncio.sleep(0.01)
        self.busy -= 1
        tokens, start = body["input_ids"], body.get("logprob_start_len", 0)
        temperature = body.get("input_logprob_temperature", 1.0) if self.scales else 1.0
        entries: list[Any] = [[None, tokens[start], None]]
        entries += [[log_prob(tokens, i, temperature), tokens[i], None] for i in range(start + 1, len(tokens))]
        return web.json_response({"output_ids": [], "meta_info": {"input_token_logprobs": self.spoil(entries)}})

    async def tokenize(self, request: web.Request) -> web.Response:
        if self.words is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"tokens": self.words((await request.json())["prompt"])})

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": self.serves, "is_generation": True})

    async def facts(self, request: web.Request) -> web.Response:
        return web.json_response({"max_req_input_len": self.longest + 1})


@contextmanager
def teacher_server() -> Iterator[Server]:
    """A running one."""
    made = Server()
    served = Served(
        {
            "POST /generate": made.generate,
            "POST /tokenize": made.tokenize,
            "GET /model_info": made.model,
            "GET /server_info": made.facts,
        }
    )
    made.url = served.url
    try:
        yield made
    finally:
        served.stop()
