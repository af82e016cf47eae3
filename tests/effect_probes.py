"""What an option changes: the files of a small run, and probes that look at it without Megatron.

Guarantee: a probe takes a configuration that a run would take and returns what the project's own code makes of it:
requests, command lines, samples, scores, files, messages. It compares by ``==`` and never holds the option itself.
"""

import dataclasses
import json
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from configs import model_folder, valid_config
from pydantic import ConfigDict

from data.ragged import Ragged
from data.schema import FORWARD, REWARD, ROLLOUT
from data.schema import table as schema_table
from relax_core.batching.slices import slice_numbers
from relax_core.config.derived import data_parallel_size, num_engines, role_devices, trainer_world_size
from relax_core.config.devices import shared_places
from relax_core.config.examine import Report, examine
from relax_core.config.forward import forward_needs
from relax_core.config.options import OPTIONS, as_namespace, with_options
from relax_core.config.parser import read_given
from relax_core.config.sections import RelaxConfig
from relax_core.config.wired import unwired_options, unwired_problems
from relax_core.engines.judge import judge_spec, num_judges
from relax_core.engines.profile import profiled
from relax_core.engines.spec import engine_spec
from relax_core.rewards.score import score_table
from relax_core.rollout import hooks
from relax_core.rollout.sampling import Sampling
from relax_core.run.transport.select import queue_settings
from relax_core.tracking.metrics import training_metrics

ROOT = Path(__file__).resolve().parents[1]
Probe = Callable[[RelaxConfig], Any]

MINE = """
import asyncio
import os
import time
from relax_core.rollout.custom import engine


def shout(prompt, row):
    return f"{prompt}!"


def drop(args, samples):
    for sample in samples:
        sample.remove_sample = True


def halve(args, samples):
    scores = [sample.reward for sample in samples]
    return scores, [score / 2 for score in scores]


def log(rollout_id, args, samples, extra, time):
    extra["mine"] = getattr(args, "mine", 0)


def log_evaluation(rollout_id, args, data, extra):
    extra["mine"] = len(data)


def even(args, group):
    return group[0].group_index % 2 == 0


def none(args, rollout_id, buffer, num_samples):
    return []


def half(sample):
    return 0.5


def two(sample):
    return {"one": 1.0, "two": 2.0}


def count(samples):
    return [len(samples)] * len(samples) if isinstance(samples, list) else 1


def slow(sample):
    time.sleep(0.3)
    return os.getpid()


def broken(sample):
    return 1 / (sample.response != "3")


def either(*arguments):
    return len(arguments)


running = 0


async def crowd(sample):
    global running
    running += 1
    seen = 0
    for _ in range(5):
        seen = max(seen, running)
        await asyncio.sleep(0)
    running -= 1
    return seen


def first_logit(args, batch, logits, sum_of_sample_mean):
    return sum_of_sample_mean(logits[:, 0]), {}


def its_square(args, batch, logits, sum_of_sample_mean):
    return sum_of_sample_mean(logits[:, 0] ** 2), {}


async def twice(args, sample, sampling_params):
    for _ in range(2):
        sample.append(await engine().generate(sample.tokens, sampling_params))
    return sample
"""
"""Functions of a user."""


def rows(first: int) -> list[dict[str, Any]]:
    """Prompts of different lengths, with every column under two names."""
    return [
        {
            "input": f"what is {'1' * i}?",
            "question": f"say {'1' * i}",
            "label": str(i),
            "answer": i + 1,
            "chat": [{"role": "user", "content": f"hello {i}"}],
            "metadata": {"level": i},
            "facts": {"level": -i},
            "tools": [{"name": "calculator"}],
            "kit": [{"name": "browser"}],
        }
        for i in range(first, first + 5)
    ]


def make_files(folder: Path) -> None:
    """Everything that the options of the cases name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, first in (("rows", 1), ("others", 11), ("evaluation", 21)):
        text = "".join(json.dumps(row) + "\n" for row in rows(first))
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "mine.py").write_text(MINE)
    (folder / "variables.yaml").write_text("env_vars:\n  COLOUR: red\n")
    (folder / "custom.yaml").write_text("lr: 0.5\n")
    (folder / "sets.yaml").write_text(f"eval:\n  datasets:\n    - name: filed\n      path: {folder}/others.jsonl\n")
    model_folder(folder / "other-model")
    (folder / "other-model" / "model.safetensors").write_bytes(b"more")
    for iteration in (0, 1):
        place = folder / "checkpoints" / f"iter_{iteration:07d}"
        place.mkdir(parents=True)
        (place / "weights").write_bytes(b"12345")
        marker = {"iteration": iteration, "weights_id": f"w{iteration}", "files": {"weights": 5}}
        (place / "relax_state.json").write_text(json.dumps(marker))
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("1")


def placed(value: Any, places: Mapping[str, str]) -> Any:
    """A value with the names of places, `{folder}`, in its texts replaced."""
    if isinstance(value, str):
        for name, place in places.items():
            value = value.replace(f"{{{name}}}", place)
        return value
    if isinstance(value, list):
        return [placed(item, places) for item in value]
    if isinstance(value, dict):
        return {key: placed(item, places) for key, item in value.items()}
    return value


def report_of(folder: Path, options: dict[str, Any], **places: str) -> Report:
    """What the check makes of a small valid run over the files of ``make_files`` with these options.

    Args:
        places: what stands in texts for `{its name}`, beside `{folder}` and the server `{inbox}`.
    """
    places = {"folder": str(folder), "inbox": inbox().address, **places}
    usual = {
        "run_dir": "{folder}/run",
        "prompt_data": "{folder}/rows.jsonl",
        "n_samples_per_prompt": 2,
        "rollout_batch_size": 4,
        "label_key": "label",
    }
    make_files(folder)
    given = {name: OPTIONS[name].convert(placed(value, places)) for name, value in (usual | options).items()}
    return examine(valid_config(folder, **given))


# What runs


def watched(config: RelaxConfig, name: str) -> tuple[RelaxConfig, set[str]]:
    """A copy of a configuration, and the modules that are at work when one of its options is read, while it is used.

    The modules are paths from the project's root.
    """
    section = OPTIONS[name].section
    part = getattr(config, section).model_copy()
    kind, modules = type(part), set[str]()

    def read(self: Any, attribute: str) -> Any:
        if attribute == name:
            frame = sys._getframe(1)
            while frame is not None:
                modules.add(frame.f_code.co_filename.removeprefix(f"{ROOT}/"))
                frame = frame.f_back  # type: ignore[assignment]
        return object.__getattribute__(self, attribute)

    quick = ConfigDict(use_attribute_docstrings=False)  # reading them from the source takes long
    object.__setattr__(part, "__class__", type("Watched", (kind,), {"__getattribute__": read, "model_config": quick}))
    return config.model_copy(update={section: part}), modules


class Inbox:
    """A server that says yes to everything. ``calls`` are the posts that it got: path and content."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                self.reply(*server.answer(self.path, None))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "null")
                server.calls.append((self.path, body))
                self.reply(*server.answer(self.path, body))

            def reply(self, status: int, content: dict[str, Any]) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        """Status and content of an answer; ``body`` is None for a GET."""
        return 200, {"success": True}


@cache
def inbox() -> Inbox:
    """The one server of this process."""
    return Inbox()


class StandIn:
    """A tokenizer whose tokens are characters."""

    def __call__(self, texts: list[str], *, add_special_tokens: bool) -> dict[str, Any]:
        return {"input_ids": [[ord(letter) % 200 for letter in text] for text in texts]}

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(letter) % 200 for letter in text]

    def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
        return json.dumps([conversation, kwargs], sort_keys=True)

    def batch_decode(self, sequences: list[list[int]], **options: Any) -> list[str]:
        return [f"{sequence} {options['skip_special_tokens']}" for sequence in sequences]

    def save_pretrained(self, folder: str) -> None:
        Path(folder, "tokenizer.json").write_text("{}")


# Tables

SCORES = [1.0, 0.0, 0.5, 0.5]


def rollout_table() -> pa.Table:
    """Two groups of two samples, the first of them with two turns."""
    lengths = [4, 1, 3, 2]
    mask = [[1, 0, 0, 1], [1], [1, 1, 1], [1, 1]]
    ids = [f"000000-000{i // 2}-00{i % 2}" for i in range(4)]
    return schema_table(
        ROLLOUT,
        {
            "sample_id": ids,
            "group_id": [name[:11] for name in ids],
            "prompt_id": [f"0000000{i // 2}" for i in range(4)],
            "group_index": [0, 0, 1, 1],
            "index": list(range(4)),
            "step": [0] * 4,
            "seed": [0] * 4,
            "prompt": ["q"] * 4,
            "tokens": Ragged.from_list([[7, *range(length)] for length in lengths], np.int32),
            "prompt_length": [1] * 4,
            "response_length": lengths,
            "response": ["2", "it is 3", "3", "2"],
            "label": pa.array(['"2"'] * 4, pa.string()),
            "metadata": ["{}"] * 4,
            "loss_mask": Ragged.from_list(mask, np.uint8),
            "rollout_log_probs": Ragged.from_lengths(np.full(sum(lengths), -1.0, np.float32), lengths),
            "weight_versions": [[0]] * 4,
            "status": ["completed"] * 4,
            "finish_reason": ["stop"] * 4,
            "remove_sample": [False] * 4,
            "abort_count": [0] * 4,
        },
    )


def reward_table() -> pa.Table:
    """Scores of ``rollout_table``."""
    rollout = rollout_table()
    return schema_table(
        REWARD,
        {
            "sample_id": rollout["sample_id"],
            "group_id": rollout["group_id"],
            "reward": pa.array(SCORES, pa.float32()),
            "raw_reward": pa.array(SCORES, pa.float32()),
            "rm_type": ["x"] * 4,
            "components": pa.array(['{"error": 1}', '{"error": 2}'] * 2, pa.string()),
        },
    )


def forward_table(columns: tuple[str, ...]) -> pa.Table:
    """Passes over ``rollout_table``, with other numbers in each column."""
    rollout = rollout_table()
    lengths = rollout["response_length"].to_numpy()
    made = {}
    for number, name in enumerate(columns):
        values = np.linspace(-3.0, -1.0, int(lengths.sum()), dtype=np.float32) ** (number + 1) / 3
        made[name] = Ragged.from_lengths(values, lengths)
    return schema_table(FORWARD, {name: rollout[name] for name in ("sample_id", "group_id", "response_length")} | made)


# Probes


def problems(config: RelaxConfig) -> list[str]:
    """What the check says, and the configuration that it corrects."""
    return [str(problem) for problem in examine(config).problems]


def sizes(config: RelaxConfig) -> tuple[int, ...]:
    """The trainer's ranks, the engines, the model's copies."""
    return trainer_world_size(config), num_engines(config), data_parallel_size(config), role_devices(config, "actor")


def queue(config: RelaxConfig) -> Any:
    """What the queue between generation and training is started with."""
    return queue_settings(config)


def slices(config: RelaxConfig) -> list[int | None]:
    """Which slice of the global batch each group is in."""
    return slice_numbers(config, [config.rollout.n_samples_per_prompt] * config.rollout.rollout_batch_size)


def what_is_not_honoured(config: RelaxConfig) -> list[str]:
    """How a switch is met that nothing honours and that may not be ignored."""
    name = next(one.name for one in unwired_options() if one.unwired == "refuse" and one.kind == "bool")
    switched = with_options(config, {name: not as_namespace(config).__dict__[name]})
    return [problem.severity for problem in unwired_problems(switched, {})]


def overriding_file(config: RelaxConfig) -> Any:
    """The options that a command line gives which names the file, if any."""
    path = config.training.custom_config_path
    words = ["--lr", "0.25", *(["--custom-config-path", path] if path else [])]
    return read_given(words, {}).config.optimizer


def engines(config: RelaxConfig) -> list[Any]:
    """How engines are started."""
    return [engine_spec(config, 0, "cpu", "logs"), engine_spec(config, 1, "cuda", "logs")]


def places(config: RelaxConfig) -> Any:
    """Which devices the processes of roles that share them have."""
    return shared_places(config)


def sampling(config: RelaxConfig) -> Any:
    """What is asked of an engine for one sample."""
    asked = Sampling.for_training(config)
    return dataclasses.asdict(asked), asked.params(seed=1, budget=5)


def evaluation_sampling(config: RelaxConfig) -> Any:
    """The same for each evaluation set."""
    sets = config.eval.eval_datasets or []
    return [Sampling.for_evaluation(one, config).params(seed=1, budget=5) for one in sets]


def traces(config: RelaxConfig) -> list[tuple[str, Any]]:
    """What engines are told to record in the first four steps."""
    server = inbox()
    server.calls.clear()
    for step in range(4):
        with profiled(config, [f"http://{server.address}"], step):
            pass
    return list(server.calls)


def scores(config: RelaxConfig) -> Any:
    """Scores of a rollout, with the names of what scored."""
    return score_table(rollout_table(), config).to_pylist()


class Judge(Inbox):
    """A judge that always finds the same."""

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        return 200, {"choices": [{"message": {"content": "[[7]]"}, "finish_reason": "stop"}]}


@cache
def _judge() -> Judge:
    return Judge()


def questions(config: RelaxConfig) -> list[str]:
    """What a judge is asked for a rollout."""
    server = _judge()
    server.calls.clear()
    score_table(rollout_table(), config, None, {"genrm": [f"http://{server.address}"]})
    return sorted(json.dumps(body) for _, body in server.calls)


def judges(config: RelaxConfig) -> list[Any]:
    """How the judge's engines are started."""
    specs = [judge_spec(config, index, "cpu", "logs") for index in range(num_judges(config))]
    return [*specs, judge_spec(config, 0, "cuda", "logs")]


def outcomes(config: RelaxConfig) -> list[str]:
    """How the calls of a reward ended."""
    return score_table(rollout_table(), config)["outcome"].to_pylist()


def processes(config: RelaxConfig) -> int:
    """Number of different scores, each of which is that of a process."""
    return len(set(score_table(rollout_table(), config)["reward"].to_pylist()))


def program(config: RelaxConfig) -> Any:
    """What becomes of a program that looks whether it is alone."""
    rollout = rollout_table().slice(0, 1)
    text = "```python\nimport os\nprint(min(os.getpid(), 3))\n```"
    for name, value in (("response", text), ("label", json.dumps({"input": "", "output": "2"}))):
        rollout = rollout.set_column(
            rollout.schema.get_field_index(name), rollout.schema.field(name), pa.array([value])
        )
    return score_table(rollout, config).select(["reward", "outcome"]).to_pylist()


def metrics(config: RelaxConfig) -> dict[str, float]:
    """Metrics of a rollout."""
    return training_metrics(rollout_table(), reward_table(), config)


def batch(config: RelaxConfig) -> Any:
    """What is trained on, after the functions of the user, with made-up passes of models where it needs any."""
    from relax_core.algorithms.batch import training_batch

    rollout, reward, columns = rollout_table(), reward_table(), forward_needs(config).columns
    samples = hooks.post_processed(rollout, reward, config)
    processed = hooks.processed_scores(samples, reward, config)
    forward = forward_table(columns) if columns else None
    return training_batch(samples, reward, config, processed, forward)[0].to_pylist()


def passes(config: RelaxConfig) -> Any:
    """Which passes of models the advantages need, and of whom."""
    return forward_needs(config)


def odd_batch(config: RelaxConfig) -> Any:
    """What is trained on of a sample without a score, of one that was cut off, and of two others."""
    from relax_core.algorithms.batch import training_batch

    rollout, reward = rollout_table(), reward_table()
    statuses = pa.array(["completed", "truncated", "completed", "completed"])
    scores = pa.array([None, 1.0, 0.5, 0.0], pa.float32())
    rollout = rollout.set_column(rollout.schema.get_field_index("status"), rollout.schema.field("status"), statuses)
    reward = reward.set_column(reward.schema.get_field_index("reward"), reward.schema.field("reward"), scores)
    return training_batch(rollout, reward, config)[0].to_pylist()


def own_metrics(config: RelaxConfig) -> Any:
    """Metrics of the user's functions."""
    rollout, reward = rollout_table(), reward_table()
    of_rollout = hooks.log_rollout(rollout, reward, config, step=0, seconds=1.0)
    return of_rollout, hooks.log_evaluation({"sums": _evaluated(rollout, reward)}, config, step=0)


def _evaluated(rollout: pa.Table, reward: pa.Table) -> pa.Table:
    from relax_core.rollout.evaluate import evaluation_table

    return evaluation_table(rollout, reward)
