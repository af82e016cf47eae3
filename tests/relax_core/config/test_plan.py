"""The plan of a run, against counts by hand and against what the run itself does."""

import ast
import gzip
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.readers import read_rows
from relax_core.batching.plan import plan_updates
from relax_core.config.options import with_options
from relax_core.config.plan import SHOWN, TASKS, Occasions, Plan, count_rows, plan
from relax_core.config.plan_memory import JUDGE_REQUESTS, Device
from relax_core.config.resolve import resolve
from relax_core.config.rules.genrm import MAX_CONTEXT
from relax_core.config.run_file import MAY_CHANGE
from relax_core.config.sections import RelaxConfig
from relax_core.engines.judge import CONTEXT
from relax_core.rewards.judge.client import ONGOING
from relax_core.training.shape import ModelShape

ROOT = Path(__file__).resolve().parents[3]
MODEL = ModelShape(
    family="qwen3",
    layers=4,
    hidden=64,
    ffn=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocab=512,
    tie=False,
    rope_theta=1e6,
    rope_scaling=None,
    norm_eps=1e-6,
    qkv_bias=False,
    qk_norm=True,
    max_positions=2048,
)
PPO: dict[str, Any] = {
    "advantage_estimator": "ppo",
    "resource": {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 2), "advantages": (1, 0)},
}
RUN: dict[str, Any] = {
    "hf_checkpoint": "model",
    "prompt_data": "prompts.jsonl",
    "rollout_batch_size": 8,
    "n_samples_per_prompt": 4,
    "num_rollout": 30,
    "rollout_max_response_len": 64,
    "rollout_max_context_len": 100,
    "rm_type": "math",
}
EVALUATED: dict[str, Any] = {"eval_prompt_data": ["aime", "aime.jsonl"], "eval_interval": 5}


def planned(
    rows: int | None = None, model: ModelShape | None = MODEL, gib: float | None = None, **options: Any
) -> Plan:
    return plan(
        resolve(with_options(RelaxConfig(), RUN | options), model), model, rows, device=gib and Device(gib, gib)
    )


# devices


def test_roles_say_what_their_devices_form() -> None:
    made = planned(
        resource={"actor": (1, 8), "rollout": (1, 6)},
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
        rollout_num_gpus_per_engine=2,
    )
    assert [(role.role, role.replicas, role.devices, role.form) for role in made.roles] == [
        ("actor", 1, 8, "data 2 x tensor 2 x pipeline 2"),
        ("rollout", 1, 6, "engines 3 x tensor 2"),
    ]


def test_the_judge_is_planned_with_its_devices_and_memory() -> None:
    judged = {"rm_type": "judge", "genrm_model_path": "judge"}
    made = plan(resolve(with_options(RelaxConfig(), RUN | judged), MODEL), MODEL, judge=MODEL)
    assert [(role.role, role.devices, role.form) for role in made.roles][-1] == (
        "genrm",
        1,
        "engines 1 x 1 devices, the judge",
    )
    *_, rollout, judge = made.memory
    # one model in both; 32 samples, each asked about once, in a context as long as the model's: 2,048 tokens
    assert (rollout.role, judge.role) == ("rollout", "genrm")
    assert judge.parts["weights"] == rollout.parts["weights"]
    assert judge.parts["KV cache"] == rollout.parts["KV cache"] // (32 * 100) * (32 * 2048)
    assert [line for line in made.lines() if "genrm: 32 requests of up to 2,048 tokens" in line]


def test_the_judges_engines_divide_its_devices_and_its_questions() -> None:
    options = {
        "rm_type": "judge",
        "genrm_model_path": "judge",
        "resource": {"actor": (1, 1), "rollout": (1, 1), "genrm": (1, 4)},
        "genrm_num_gpus_per_engine": 2,
        "genrm_engine_config": {"max_context_len": 512, "max_total_tokens": 4096},
    }
    made = plan(resolve(with_options(RelaxConfig(), RUN | options), MODEL), MODEL, judge=MODEL)
    assert made.roles[-1].form == "engines 2 x 2 devices, the judge"
    # 32 questions to 2 engines: 16 x 512 = 8,192 tokens, of which the cache is told to hold half
    assert made.memory[-1].notes[0] == "16 requests of up to 512 tokens, its whole context"
    assert made.memory[-1].notes[2] == "max_total_tokens holds 4,096, the rest waits"


def test_the_limits_of_the_judge_are_those_it_has() -> None:
    assert (MAX_CONTEXT, JUDGE_REQUESTS) == (CONTEXT, ONGOING)


def test_without_a_judge_none_is_planned() -> None:
    assert "genrm" not in {role.role for role in planned().roles} | {memory.role for memory in planned().memory}


# batches


def test_prompts_become_micro_batches() -> None:
    batch = planned(num_steps_per_rollout=2, resource={"actor": (1, 2), "rollout": (1, 1)}, micro_batch_size=3).batch
    assert (batch.prompts, batch.samples_per_prompt, batch.rows) == (8, 4, 32)
    assert (batch.updates, batch.update_rows, batch.rank_rows) == (2, 16, 8)
    assert batch.micro_batches == (3, 3)  # 3 + 3 + 2 samples
    assert batch.longest == 100


def test_dynamic_micro_batches_have_bounds() -> None:
    dynamic: dict[str, Any] = {"use_dynamic_batch_size": True}
    batch = planned(**dynamic, max_tokens_per_gpu=350).batch  # 3 samples of 100 tokens fit, of 32: 11 micro-batches
    assert (batch.micro_rows, batch.micro_tokens, batch.micro_batches) == (None, 350, (1, 11))
    assert planned(**dynamic, max_tokens_per_gpu=100).batch.micro_batches == (1, 32)


@given(st.lists(st.integers(1, 100), min_size=32, max_size=32), st.integers(100, 500), st.sampled_from([1, 2, 4]))
def test_a_packing_is_never_outside_the_bounds(lengths: list[int], budget: int, replicas: int) -> None:
    batch = planned(
        use_dynamic_batch_size=True, max_tokens_per_gpu=budget, resource={"actor": (1, replicas), "rollout": (1, 1)}
    ).batch
    (update,) = plan_updates(lengths, dp_size=replicas, max_tokens=budget)
    assert batch.micro_batches[0] <= update.num_micro_batches <= batch.micro_batches[1]


# steps


def test_steps_of_the_run() -> None:
    made = planned(num_steps_per_rollout=2)
    assert (made.steps, made.optimizer_steps, made.at_most) == (30, 60, False)


def test_epochs_need_the_rows_of_the_prompts() -> None:
    assert planned(num_rollout=None, num_epoch=2).steps is None
    made = planned(rows=103, num_rollout=None, num_epoch=2)  # 103 prompts, 8 a step: 12 whole steps an epoch
    assert (made.steps, made.optimizer_steps, made.at_most) == (24, 24, True)
    assert planned(rows=103, num_epoch=2).steps == 30  # --num-rollout wins


def test_evaluations_and_checkpoints() -> None:
    made = planned(**EVALUATED, save_interval=20)
    assert made.evaluations == Occasions(True, 5, (4, 9, 14, 19), 29, 7)
    assert made.checkpoints == Occasions(False, 20, (19, 29), 29, 2)  # the last step is always saved
    text = "\n".join(made.lines())
    assert "evaluation before training and after steps 4, 9, ..., 29: 7 in all" in text
    assert "checkpoint after steps 19, 29: 2 in all" in text
    assert planned(save_interval=15).checkpoints.steps == (14, 29)
    assert planned().checkpoints == Occasions(False, None, (29,), 29, 1)
    assert planned().evaluations.count == 0
    assert planned(**EVALUATED, skip_eval_before_train=True).evaluations.count == 6
    assert planned(**EVALUATED | {"eval_interval": 50}).evaluations == Occasions(True, 50, (), None, 1)


def test_occasions_of_a_run_of_unknown_length() -> None:
    lines = planned(num_rollout=None, num_epoch=2, **EVALUATED, save_interval=7).lines()
    assert "  number of steps: known when the prompts are read (--num-epoch)" in lines
    assert "  evaluation before training and after every 5 steps" in lines
    assert "  checkpoint after every 7 steps" in lines


@settings(deadline=None)  # the first draw imports the session
@given(st.integers(1, 40), st.integers(1, 12) | st.none(), st.integers(1, 12) | st.none(), st.booleans())
def test_occasions_are_those_of_the_run(steps: int, save: int | None, evaluate: int | None, skip: bool) -> None:
    from relax_core.run.session import RunSession

    config = resolve(
        with_options(
            RelaxConfig(),
            {**RUN, **EVALUATED, "num_rollout": steps, "save_interval": save, "eval_interval": evaluate}
            | {"skip_eval_before_train": skip},
        )
    )
    session = object.__new__(RunSession)
    session.config, session.total_steps, session.steps_per_epoch = config, steps, None
    session.__dict__["evaluation_sets"] = config.eval.eval_datasets  # as far as their number counts
    made = plan(config, None)
    for occasions, due, before in (
        (made.checkpoints, session.checkpoint_due, False),
        (made.evaluations, session.evaluation_due, session.evaluates_before(0)),
    ):
        times = [step for step in range(steps) if due(step)]
        assert occasions.count == len(times) + before
        assert occasions.before == before
        assert occasions.last == (times[-1] if times else None)
        assert list(occasions.steps) == times[:SHOWN]


@given(st.integers(1, 20), st.integers(1, 12), st.integers(1, 12) | st.none(), st.booleans())
def test_checkpoints_of_epochs_and_of_every_step_are_those_of_the_run(
    epoch: int, epochs: int, save: int | None, rotate: bool
) -> None:
    from relax_core.run.session import RunSession

    options = {"num_rollout": None, "num_epoch": epochs, "save_interval": save, "rotate_ckpt": rotate}
    config = resolve(with_options(RelaxConfig(), {**RUN, **options}))
    rows = epoch * config.rollout.rollout_batch_size + 1
    session = object.__new__(RunSession)
    session.config, session.__dict__["prompts"] = config, range(rows)
    session.total_steps, session.steps_per_epoch = session._length()
    made = plan(config, None, rows)
    assert made.steps == session.total_steps == epoch * epochs
    times = [step for step in range(made.steps) if session.checkpoint_due(step)]
    assert made.checkpoints.count == len(times)
    assert made.checkpoints.last == times[-1]
    assert list(made.checkpoints.steps) == times[:SHOWN]


def test_a_run_without_end_takes_no_time_to_plan() -> None:
    assert planned(num_rollout=10**15, **EVALUATED, save_interval=1).checkpoints.count == 10**15


# tasks


def test_tasks_are_those_of_the_flow_in_its_order() -> None:
    tree = ast.parse((ROOT / "flows/train.py").read_text())
    tasks = {
        alias.asname or alias.name: {"passes": "forward", "critics": "train_critic"}.get(alias.name, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tasks.")
        for alias in node.names
    }
    (flow,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "rollout_step")
    calls = [
        (node.lineno, tasks[node.func.id])
        for node in ast.walk(flow)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in tasks
    ]
    assert [name for _, name in sorted(calls)] == list(TASKS)


def test_tasks_that_a_run_never_has_are_left_out() -> None:
    usual = [name for name in TASKS if name not in ("forward", "train_critic")]
    assert [name for name, _ in planned().tasks] == [name for name in usual if not name.startswith("evaluate")]
    assert [name for name, _ in planned(**EVALUATED).tasks] == usual
    assert [name for name, _ in planned(**EVALUATED, **PPO).tasks] == list(TASKS)
    assert dict(planned(**EVALUATED).tasks)["evaluate_before"] == "before the first step"


# memory


def test_a_critic_is_a_role_with_tasks_and_memory_of_its_own() -> None:
    made = planned(**PPO)
    assert {role.role: (role.devices, role.form) for role in made.roles} == {
        "actor": (1, "data 1 x tensor 1 x pipeline 1"),
        "rollout": (1, "engines 1 x tensor 1"),
        "critic": (2, "data 2 x tensor 1 x pipeline 1"),
        "advantages": (0, "on the driver's CPU"),
    }
    actor, critic, engine = made.memory
    assert (actor.role, critic.role, engine.role) == ("actor", "critic", "rollout")
    # no output layer of 512 x 64, but a head of 64 and a bias
    assert (actor.parts["weights"] - critic.parts["weights"]) // 4 == 512 * 64 - 65
    # 100 tokens of 64 numbers in float32, and their gradient
    assert critic.parts["logits"] == 100 * 64 * 4 * 2
    assert any("critic" in line for line in made.lines())


def test_options_of_the_critic_decide_its_training_alone() -> None:
    changes = {change.stage: change for change in planned(**PPO).changes}
    assert list(changes) == ["generate", "reward", "forward", "advantage", "train_critic", "train", "evaluate"]
    assert {"--critic-lr", "--critic-lr-warmup-iters", "--value-clip"} <= set(changes["train_critic"].fixed)
    assert "--lr" in changes["train"].fixed
    assert {"--num-critic-only-steps", "--critic-train-only"} <= set(changes["train"].fixed)


def test_devices_that_roles_share_count_once() -> None:
    judge: dict[str, Any] = {"genrm_model_path": "judge", "genrm_num_gpus": 2, "rm_type": "judge"}
    shared = planned(colocate=True, resource={"actor": (1, 4), "rollout": (1, 2)}, **judge)
    assert shared.devices == 4
    assert {role.role: role.form for role in shared.roles} == {
        "actor": "data 4 x tensor 1 x pipeline 1",
        "rollout": "engines 2 x tensor 1, in turns with the actor on its devices 0 to 1",
        "genrm": "engines 2 x 1 devices, the judge, in turns with the actor on its devices 2 to 3",
    }
    assert shared.lines()[0] == "Devices, 4 in all"
    assert planned(resource={"actor": (1, 4), "rollout": (1, 2)}, **judge).devices == 8


def test_shared_devices_hold_trainer_and_weights_while_they_are_handed_over() -> None:
    actor, engine, both = planned(colocate=True, bf16=True, update_weight_buffer_size=1000).memory
    lasting = sum(actor.parts[name] for name in ("weights", "gradients", "main weights", "Adam"))
    assert both.parts == {"the actor": lasting, "the engine's weights": engine.parts["weights"], "buckets": 2000}
    assert both.peak == sum(both.parts.values())
    assert [memory.fits for memory in planned(colocate=True, gib=1e-6).memory] == [False, False, False]
    assert len(planned().memory) == 2


def test_memory_of_the_roles() -> None:
    # 512 x 64 twice, 64, and 4 layers: 64 x 64 x 2 + 64 x 32 x 2, 3 x 64 x 128, 2 x 64 + 2 x 16
    parameters = 2 * 32_768 + 64 + 4 * (8_192 + 4_096 + 24_576 + 160)
    actor, engine = planned().memory
    assert actor.role == "actor"
    assert (actor.parts["weights"], actor.parts["gradients"], actor.parts["Adam"]) == (
        4 * parameters,
        4 * parameters,
        8 * parameters,
    )
    assert actor.peak == 16 * parameters + actor.parts["activations"] + actor.parts["logits"]
    assert engine.role == "rollout"
    # 32 samples of at most 100 tokens; keys and values, 4 layers, 2 heads of 16, 4 bytes
    assert engine.parts == {"weights": 4 * parameters, "KV cache": 32 * 100 * 2 * 4 * 2 * 16 * 4}
    assert (actor.fits, engine.fits) == (None, None)


def test_options_of_memory_are_looked_at() -> None:
    def part(name: str, role: int = 0, **options: Any) -> int:
        return planned(**options).memory[role].parts[name]

    assert part("weights", bf16=True) * 2 == part("weights")
    assert part("main weights", bf16=True) > part("main weights") == 0
    two: dict[str, Any] = {"resource": {"actor": (1, 2), "rollout": (1, 2)}}
    assert part("Adam", **two, use_distributed_optimizer=True) * 2 == part("Adam", **two)
    assert part("weights", **two, tensor_model_parallel_size=2) < part("weights")
    assert part("activations", micro_batch_size=2) == 2 * part("activations")
    full: dict[str, Any] = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    assert part("activations", **full) < part("activations")
    assert part("layers computed again", **full) > 0
    kl: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1}
    assert part("pass without gradient", **kl) == part("pass without gradient") + part("weights")
    assert part("logits", log_probs_chunk_size=10) < part("logits")
    own: dict[str, Any] = {"loss_type": "custom_loss", "custom_loss_function_path": "mine.py:loss"}
    assert part("logits", **own) == 100 * 512 * 4 * 3
    dynamic: dict[str, Any] = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 1000}
    assert part("activations", **dynamic) == 10 * part("activations")
    assert part("KV cache", 1, sglang_max_running_requests=4) * 8 == part("KV cache", 1)
    assert part("KV cache", 1, sglang_max_total_tokens=1600) * 2 == part("KV cache", 1)
    assert part("KV cache", 1, sglang_dtype="bfloat16") * 2 == part("KV cache", 1)
    assert part("KV cache", 1, **two, rollout_num_gpus_per_engine=2) * 2 == part("KV cache", 1)


def test_the_stage_that_needs_most_is_shown() -> None:
    halves: dict[str, Any] = {"pipeline_model_parallel_size": 2, "resource": {"actor": (1, 2), "rollout": (1, 1)}}
    first = planned(**halves).memory[0]  # two micro-batches in flight
    assert first.notes[0] == "pipeline stage 0, which needs most"
    last = planned(**halves, model=replace(MODEL, vocab=51_200)).memory[0]  # the logits
    assert last.notes[0] == "pipeline stage 1, which needs most"


def test_a_device_of_known_size_says_whether_it_fits() -> None:
    large = planned(gib=1.0, sglang_mem_fraction_static=0.5)
    assert [memory.fits for memory in large.memory] == [True, True]
    assert "room for" in large.memory[1].notes[-1]
    small = planned(gib=0.0005)
    assert [memory.fits for memory in small.memory] == [False, False]
    assert any(line.endswith("does not fit") for line in small.lines())


def test_without_a_model_memory_is_not_known() -> None:
    made = planned(model=None)
    assert made.memory == ()
    assert any("not known: it needs the model's config.json" in line for line in made.lines())


# changes


def test_a_change_says_what_runs_again() -> None:
    changes = {change.stage: change for change in planned().changes}
    assert list(changes) == ["generate", "reward", "advantage", "train", "evaluate"]
    assert "--rollout-temperature" in changes["generate"].fixed
    assert "--rollout-temperature" not in changes["train"].fixed  # it decides generation first
    assert "--rm-type" in changes["reward"].options
    assert (changes["reward"].kept, changes["reward"].again[0]) == (("generate",), "reward")
    assert "--lr" in changes["train"].fixed
    assert changes["train"].again == ("train", "evaluate")
    assert changes["train"].kept == ("generate", "reward", "advantage")
    assert changes["evaluate"].again == ("evaluate",)


def test_only_what_a_run_directory_lets_change_is_offered() -> None:
    for change in planned(lr_decay_style="linear").changes:
        assert {flag[2:].replace("-", "_") for flag in change.options} <= MAY_CHANGE
        assert not {flag[2:].replace("-", "_") for flag in change.fixed} & MAY_CHANGE


def test_options_without_an_effect_are_not_listed() -> None:
    def train(**options: Any) -> tuple[str, ...]:
        return planned(**options).changes[3].fixed

    assert "--kl-loss-type" not in train()
    assert "--kl-loss-type" in train(use_kl_loss=True, kl_loss_coef=0.1)


# as text and JSON


def test_the_text_is_complete_and_fits_a_terminal() -> None:
    made = planned(**EVALUATED, use_kl_loss=True, kl_loss_coef=0.1, gib=80, sglang_mem_fraction_static=0.8)
    lines = made.lines()
    assert max(map(len, lines)) <= 98  # the doctor indents them
    assert lines[:3] == [
        "Devices, 2 in all",
        "  actor     1 device: data 1 x tensor 1 x pipeline 1",
        "  rollout   1 device: engines 1 x tensor 1",
    ]
    assert "  8 prompts x 4 samples = 32 samples a rollout step" in lines
    assert "  32 micro-batches of 1 sample on a rank in an optimiser step" in lines
    assert "  30 rollout steps, 30 optimiser steps" in lines
    changes = " ".join(" ".join(lines).split())
    assert "reward and what follows run again; generate is kept" in changes
    assert "refused, since train was made with it; take another --run-dir" in changes


def test_the_plan_is_json() -> None:
    made = planned(**EVALUATED)
    read = json.loads(json.dumps(made.to_json()))
    assert read["batch"]["rows"] == 32
    assert read["evaluations"]["count"] == 7
    assert {memory["role"] for memory in read["memory"]} == {"actor", "rollout"}


# rows

LINES = '{"input": "a"}\n\n{"input": "b"}\n  \n{"input": "c"}'  # three rows, and no end of the last line


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rows")
    plain, marked, packed, table = (folder / name for name in ("a.jsonl", "b.jsonl", "c.jsonl.gz", "d.parquet"))
    plain.write_text(LINES)
    marked.write_text("\ufeff" + LINES + "\n")
    packed.write_bytes(gzip.compress(LINES.encode()))
    pq.write_table(pa.table({"input": ["a", "b", "c"]}), table)
    return {"plain": plain, "marked": marked, "packed": packed, "parquet": table}


@pytest.mark.parametrize("kind", ["plain", "marked", "packed", "parquet"])
@pytest.mark.parametrize("suffix", ["", "@[0:2]", "@[1:]", "@[-1:]", "@[:-1]", "@[:]", "@[2:1]", "@[5:9]", "@[0:100]"])
def test_rows_are_counted_as_they_are_read(files: dict[str, Path], kind: str, suffix: str) -> None:
    source = f"{files[kind]}{suffix}"
    try:
        read = len(read_rows(source, columns=["input"]))
    except UserError:  # a slice without rows
        read = 0
    assert count_rows(source) == read


def test_what_cannot_be_counted_is_none(files: dict[str, Path], tmp_path: Path) -> None:
    damaged, cut = tmp_path / "damaged.parquet", tmp_path / "cut.jsonl.gz"
    damaged.write_bytes(b"PAR1 and nothing more")
    cut.write_bytes(files["packed"].read_bytes()[:-12])
    for source in ("s3://bucket/a.jsonl", str(tmp_path), f"{tmp_path}/none.jsonl", f"{files['plain']}@[a:b]"):
        assert count_rows(source) is None
    assert count_rows(str(damaged)) is None
    assert count_rows(str(cut)) is None
    assert count_rows(f"file://{files['plain']}") == 3
    (tmp_path / "empty.jsonl").write_text("")
    assert count_rows(str(tmp_path / "empty.jsonl")) == 0


def test_nothing_heavy_is_imported(files: dict[str, Path]) -> None:
    code = (
        "import sys; from relax_core.config.plan import count_rows\n"
        "before = sorted({'torch', 'ray', 'transformers', 'pyarrow', 'fsspec'} & set(sys.modules))\n"
        f"print(count_rows({str(files['plain'])!r}), before, 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3 [] False"
