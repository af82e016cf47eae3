# ruff: noqa: E402  (paths and threads are set before the imports)
"""What it costs a step that nothing of it can be lost: bytes and milliseconds.

    python benchmarks/durability.py [--samples 512] [--tokens 2000] [--steps 6] [--slow SECONDS] [--out FILE.json]

The real flow (without Prefect, whose cost ``step_overhead.py`` shows) with engines that answer at once, each sample
with a response of so many tokens of random English words and log-probabilities of full precision. Two runs: one with a
run directory on this disk, and one that keeps the same tables and files in memory, unserialised, unhashed and
unwritten. The difference is what durability costs; the table says which file takes what, as seconds inside the store's
calls (those of a thread beside the flow are shown apart). ``--slow`` spreads a step's answers over so many seconds, so
that finished samples are kept while others are generated. The first step is left out.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np
from aiohttp import web
from fakes import FakeBackend, FakeEngine, FakeTrainer
from loop import run_plain
from tiny import make_tiny

from data.files import FileStore, MissingFile
from data.store import RunStore, TableRef
from relax_core.config import RelaxConfig, with_options

GOAL_MS, GOAL_MB = 150.0, 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds over which the answers of a step are spread")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RELAX_HOME"] = f"{folder}/relax"
        figures = measure(Path(folder), chosen.samples, chosen.tokens, chosen.steps, chosen.slow)
    show(figures, chosen.samples, chosen.tokens)
    if chosen.out:
        chosen.out.write_text(json.dumps(figures, indent=2) + "\n")


def measure(folder: Path, samples: int, tokens: int, steps: int, slow: float) -> dict[str, Any]:
    """Both runs, and what the first wrote."""
    words = corpus()
    model = make_tiny(folder / "model", vocab=32000, hidden=16, layers=1, ffn=16, heads=2, kv_heads=1, corpus=words)
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"input": f"{a} + 2 =", "label": str(a + 2)}) + "\n" for a in range(64)))
    answers = make_answers(model, words, samples, tokens)
    options = {
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": steps,
        "rollout_batch_size": samples // 8,
        "n_samples_per_prompt": 8,
        "rollout_max_response_len": tokens,
        "sglang_server_concurrency": samples,
        "rm_type": "exact_number",
    }
    made = with_options(RelaxConfig(), options)
    calls = Calls()
    with calls.counted():
        on_disk = seconds_of(with_options(made, {"run_dir": str(folder / "disk")}), answers, slow)
    with in_memory():
        in_mind = seconds_of(with_options(made, {"run_dir": str(folder / "mind")}), answers, slow)
    total = sum(path.stat().st_size for path in (folder / "disk").rglob("*") if path.is_file())
    return {
        "steps": steps - 1,
        "seconds_on_disk": statistics.median(on_disk[1:]),
        "seconds_in_memory": statistics.median(in_mind[1:]),
        "bytes_left": total / steps,
        "files": calls.a_step(steps),
    }


def corpus() -> list[str]:
    """English text: the pages of the documentation."""
    return [page.read_text() for page in sorted((ROOT / "docs").rglob("*.md"))]


def make_answers(model: Path, texts: list[str], samples: int, tokens: int) -> list[tuple[bytes, bytes]]:
    """Bodies of answers, cut where the version goes in; words as often as in the texts, but in any order, so that no
    compression finds whole sentences again."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model))
    words = np.array(re.findall(r"\S+\s?", " ".join(texts)), dtype=object)
    random = np.random.default_rng(0)
    bodies = []
    for _ in range(samples):
        ids = tokenizer("".join(random.choice(words, tokens)))["input_ids"][:tokens]
        sure = random.random(len(ids)) < 0.6  # most tokens are nearly certain, others are not
        log_probs = -random.exponential(np.where(sure, 0.02, 1.0)).astype(np.float32)
        meta = {
            "finish_reason": {"type": "stop", "matched": 2},
            "prompt_tokens": 8,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": "VERSION",
            "output_token_logprobs": [[float(value), token, None] for value, token in zip(log_probs, ids, strict=True)],
        }
        before, after = json.dumps({"text": "", "output_ids": ids, "meta_info": meta}).split("VERSION")
        bodies.append((before.encode(), after.encode()))
    return bodies


class Engine(FakeEngine):
    """Gives prepared answers; those of a step are spread over ``slow`` seconds."""

    def __init__(self, answers: list[tuple[bytes, bytes]], slow: float) -> None:
        self.answers_ready, self.slow = answers, slow
        super().__init__()

    async def _generate(self, request: web.Request) -> web.Response:
        import asyncio

        await request.read()
        number = self.generate_calls % len(self.answers_ready)
        self.generate_calls += 1
        await asyncio.sleep(self.slow * number / len(self.answers_ready))
        before, after = self.answers_ready[number]
        return web.Response(body=before + self.label.encode() + after, content_type="application/json")


def seconds_of(config: RelaxConfig, answers: list[tuple[bytes, bytes]], slow: float) -> list[float]:
    """Wall seconds of each step of a run."""
    import flows.train

    backend = FakeBackend()
    backend.engine.stop()
    backend.engine = Engine(answers, slow)
    backend.trainer = FakeTrainer(backend.engine, events=backend.events)
    found: list[float] = []
    step_flow = flows.train.rollout_step

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = step_flow(*args, **kwargs)
        found.append(time.perf_counter() - started)
        return result

    with mock.patch.object(flows.train, "rollout_step", timed):
        run_plain(config, backend)
    backend.engine.stop()
    return found


class Calls:
    """Bytes and seconds of the store's calls, by file; a call inside another counts once."""

    def __init__(self) -> None:
        self._inside = threading.local()
        self._lock = threading.Lock()
        self._main = threading.get_ident()
        self.found: dict[tuple[str, str, bool], list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0.0])

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in ("write_table", "write_bytes", "append_jsonl", "delete", "read_table", "valid", "read_bytes"):
                owner = RunStore if name in ("write_table", "read_table", "valid") else FileStore
                stack.enter_context(mock.patch.object(owner, name, self._timed(name, getattr(owner, name))))
            yield

    def _timed(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: FileStore, path: Any, *args: Any, **kwargs: Any) -> Any:
            size = len(args[0]) if name == "write_bytes" else 0
            if getattr(self._inside, "at", False):
                if size:
                    self._note("write", path, size, 0.0)
                return real(store, path, *args, **kwargs)
            self._inside.at, started, worked = True, time.perf_counter(), time.thread_time()
            try:
                return real(store, path, *args, **kwargs)
            finally:
                self._inside.at = False
                verb = "read" if name in ("read_table", "valid", "read_bytes") else "write"
                self._note(verb, path, size, time.perf_counter() - started, time.thread_time() - worked)

        return call

    def _note(self, verb: str, path: Any, size: int, seconds: float, worked: float = 0.0) -> None:
        text = path.path if isinstance(path, TableRef) else str(path)
        name = re.sub(r"[0-9a-f]{16,}", "*", re.sub(r"^steps/\d+/", "", text))
        with self._lock:
            entry = self.found[verb, name, threading.get_ident() == self._main]
            entry[0] += size > 0 or verb == "read"
            entry[1] += size
            entry[2] += seconds
            entry[3] += worked

    def a_step(self, steps: int) -> list[dict[str, Any]]:
        """One row a file and verb, most expensive first."""
        rows = [
            {
                "file": name,
                "what": verb,
                "beside": not main,
                "bytes": entry[1] / steps,
                "ms": 1000 * entry[2] / steps,
                "cpu_ms": 1000 * entry[3] / steps,
            }
            for (verb, name, main), entry in self.found.items()
        ]
        return sorted(rows, key=lambda row: -row["ms"])


@contextlib.contextmanager
def in_memory() -> Iterator[None]:
    """Stores whose files and tables are Python objects."""
    files: dict[str, Any] = {}
    tables: dict[str, Any] = {}

    def key(store: FileStore, path: str) -> str:
        return f"{store.url}/{path.strip('/')}"

    def write_bytes(store: FileStore, path: str, data: Any, private: bool = False) -> None:
        files[key(store, path)] = bytes(data)

    def read_bytes(store: FileStore, path: str) -> bytes:
        if key(store, path) not in files:
            raise MissingFile(path, "")
        return files[key(store, path)]

    def write_table(store: FileStore, path: str, table: Any) -> TableRef:
        from data.schema import schema_id

        reference = TableRef(path.strip("/"), table.num_rows, 0, uuid.uuid4().hex, schema_id(table.schema))
        tables[reference.sha256] = tables[key(store, path)] = table
        files[key(store, path)] = b""
        return reference

    def read_table(store: FileStore, ref: Any, columns: Any = None) -> Any:
        table = tables[ref.sha256 if isinstance(ref, TableRef) else key(store, ref)]
        return table if columns is None else table.select(list(columns))

    def listed(store: FileStore, path: str = "") -> list[str]:
        root = f"{key(store, path)}/" if path else f"{store.url}/"
        return sorted({name[len(root) :].split("/")[0] for name in files if name.startswith(root)})

    def sizes(store: FileStore, path: str = "") -> dict[str, int]:
        skip = len(store.url) + 1
        return {name[skip:]: len(data) for name, data in files.items() if name.startswith(key(store, path) + "/")}

    def delete(store: FileStore, path: str) -> None:
        root = key(store, path)
        for name in [name for name in files if name == root or name.startswith(f"{root}/")]:
            del files[name]

    replaced: dict[str, Any] = {
        "write_bytes": write_bytes,
        "read_bytes": read_bytes,
        "write_table": write_table,
        "read_table": read_table,
        "valid": lambda store, ref: ref.sha256 in tables,
        "exists": lambda store, path: any(f"{name}/".startswith(f"{key(store, path)}/") for name in files),
        "ls": listed,
        "sizes": sizes,
        "delete": delete,
        "append_jsonl": lambda store, path, obj: None,
        "read_jsonl": lambda store, path: [],
        "check_writable": lambda store, free_bytes=0: None,
    }
    with contextlib.ExitStack() as stack:
        for name, function in replaced.items():
            owner = RunStore if name in ("write_table", "read_table", "valid") else FileStore
            stack.enter_context(mock.patch.object(owner, name, function))
        yield


def show(figures: dict[str, Any], samples: int, tokens: int) -> None:
    """The table."""
    print(f"\n{samples} samples x {tokens} tokens, medians and means of {figures['steps']} steps")
    print(f"{'file':44} {'':6} {'MB a step':>10} {'ms a step':>10} {'of CPU':>8}")
    for row in figures["files"]:
        if row["ms"] >= 0.3 or row["bytes"] >= 20_000:
            where = " (beside)" if row["beside"] else ""
            figures_of = f"{row['bytes'] / 1e6:10.2f} {row['ms']:10.1f} {row['cpu_ms']:8.1f}"
            print(f"{row['file'][:34] + where:44} {row['what']:6} {figures_of}")
    written = sum(row["bytes"] for row in figures["files"]) / 1e6
    inside = sum(row["ms"] for row in figures["files"] if not row["beside"])
    worked = sum(row["cpu_ms"] for row in figures["files"] if not row["beside"])
    beside = sum(row["ms"] for row in figures["files"] if row["beside"])
    more = 1000 * (figures["seconds_on_disk"] - figures["seconds_in_memory"])
    print(f"{'all':44} {'':6} {written:10.2f} {inside:10.1f} {worked:8.1f}   and beside the flow {beside:.1f}")
    print(f"left on the disk: {figures['bytes_left'] / 1e6:.2f} MB a step")
    print(
        f"step {figures['seconds_on_disk']:.3f} s on disk, {figures['seconds_in_memory']:.3f} s in memory: "
        f"{more:+.0f} ms (goal: {GOAL_MS:.0f} ms, {GOAL_MB:.0f} MB)"
    )


if __name__ == "__main__":
    main()
