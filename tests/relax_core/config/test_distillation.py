"""What distillation asks of a configuration, and what a change of it runs again."""

import json
from pathlib import Path
from typing import Any

import pytest
from configs import model_folder, valid_config

from relax_core.config.derived import asks_teacher, needs_reference, needs_teacher
from relax_core.config.examine import examine
from relax_core.config.forward import forward_needs
from relax_core.config.options import OPTIONS, with_options
from relax_core.config.plan import plan
from relax_core.config.resolve import resolve
from relax_core.config.run_file import may_change
from relax_core.config.sections import RelaxConfig
from relax_core.config.stages import STAGES, options_hash, stage_options

SERVER = {"use_opd": True, "opd_type": "sglang", "rm_url": "http://teacher:30000"}


def trainer(folder: Path, **model: Any) -> dict[str, Any]:
    """A teacher in the trainer."""
    return {"use_opd": True, "opd_type": "megatron", "opd_teacher_load": str(model_folder(folder / "teacher", **model))}


def told(folder: Path, **options: Any) -> list[str]:
    return [str(problem) for problem in examine(valid_config(folder, **options)).problems]


def test_a_teacher_in_the_trainer_needs_neither_a_reference_nor_a_kl_nor_a_reward(tmp_path: Path) -> None:
    config = valid_config(tmp_path, **trainer(tmp_path), rm_type=None)
    assert [str(problem) for problem in examine(config).problems] == []
    assert (needs_teacher(config), asks_teacher(config), needs_reference(config)) == (True, False, False)
    assert forward_needs(config)
    server = valid_config(tmp_path, **SERVER, rm_type=None)
    assert [str(problem) for problem in examine(server).problems] == []
    assert (needs_teacher(server), asks_teacher(server), needs_reference(server)) == (False, True, False)


@pytest.mark.parametrize(
    ("model", "differing"),
    [
        ({"num_hidden_layers": 2}, "layers 2 instead of 4"),
        ({"vocab_size": 600}, "vocab 600 instead of 512"),
        ({"rope_theta": 5e5}, "rope_theta 500000.0 instead of 10000.0"),
    ],
)
def test_a_teacher_in_the_trainer_has_the_actors_shape(tmp_path: Path, model: dict[str, Any], differing: str) -> None:
    teacher = trainer(tmp_path, **model)
    (Path(teacher["opd_teacher_load"]) / "tokenizer.json").unlink()  # a teacher in the trainer needs none
    [problem] = told(tmp_path, **teacher)
    assert f"--opd-teacher-load {teacher['opd_teacher_load']}: has another shape" in problem
    assert f"than --hf-checkpoint: {differing}. A teacher in the trainer" in problem


def test_how_long_samples_may_be_makes_no_other_model(tmp_path: Path) -> None:
    assert told(tmp_path, **trainer(tmp_path, max_position_embeddings=4096)) == []
    assert told(tmp_path, ref_load=str(model_folder(tmp_path / "ref", max_position_embeddings=4096))) == []


def test_a_checkpoint_of_the_teacher_is_looked_for(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    (folder / "iter_0000003").mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("3")
    (folder / "iter_0000003" / "relax_state.json").write_text(json.dumps({"files": {}}))
    options = {**trainer(tmp_path), "opd_teacher_load": str(folder)}
    assert told(tmp_path, **options) == []
    assert told(tmp_path, **options, opd_teacher_ckpt_step=3) == []
    [problem] = told(tmp_path, **options, opd_teacher_ckpt_step=5)
    assert "has no complete checkpoint of step 5, which --opd-teacher-ckpt-step names. Leave --opd-teacher-" in problem
    [problem] = told(tmp_path, **{**options, "opd_teacher_load": str(tmp_path / "nowhere")})
    assert "--opd-teacher-load" in problem


def test_a_teacher_that_is_not_used_is_not_looked_for(tmp_path: Path) -> None:
    [warning] = told(tmp_path, opd_teacher_load="nowhere")
    assert warning.startswith("--opd-teacher-load nowhere: has no effect without --use-opd")


def test_an_evaluation_needs_a_reward(tmp_path: Path) -> None:
    prompts = str(tmp_path / "prompts.jsonl")
    options = {**SERVER, "rm_type": None, "eval_prompt_data": ["sums", prompts]}
    assert [text for text in told(tmp_path, **options) if "rm-type" in text] == []  # it is never evaluated
    [problem] = [text for text in told(tmp_path, **options, eval_interval=1) if "rm-type" in text]
    assert problem.startswith("--rm-type: is required for the evaluation")
    scored = {**options, "eval_interval": 1, "rm_type": "exact_number"}
    assert [text for text in told(tmp_path, **scored) if "rm-type" in text] == []


def changed(base: dict[str, Any], change: dict[str, Any]) -> set[str]:
    """Stages whose options are others."""
    before, after = (resolve(with_options(RelaxConfig(), options)) for options in (base, base | change))
    hashes = [{stage: options_hash(stage_options(one, stage)) for stage in STAGES} for one in (before, after)]
    return {stage for stage in STAGES if hashes[0][stage] != hashes[1][stage]}


def test_a_change_reaches_the_stages_whose_output_it_changes() -> None:
    model = {"use_opd": True, "opd_type": "megatron", "opd_teacher_load": "one"}
    assert changed(model, {"opd_kl_coef": 0.5}) == {"advantage"}
    assert changed(model, {"opd_teacher_load": "two"}) == {"forward"}
    assert changed(model, {"opd_teacher_ckpt_step": 2}) == {"forward"}
    assert changed(model, {"rm_url": "http://a"}) == set()
    assert changed(model, {"ref_load": "ref", "load": "actor"}) == changed({}, {"ref_load": "ref", "load": "actor"})
    assert changed(SERVER, {"rm_url": "http://other:30000"}) == {"forward"}
    assert changed(SERVER, {"opd_teacher_load": "two"}) == set()
    assert changed({}, {"opd_kl_coef": 0.5, "opd_type": "sglang", "opd_teacher_load": "one"}) == set()
    assert changed({"custom_rm_path": "mine.score"}, model) == {"forward", "advantage"}
    assert changed({}, model) >= {"reward", "forward", "advantage"}  # the samples score 0


def test_a_run_that_has_begun_keeps_its_teacher_but_the_server_may_move() -> None:
    fixed = ("use_opd", "opd_type", "opd_kl_coef", "opd_teacher_load", "opd_teacher_ckpt_step")
    assert not [name for name in fixed if may_change(OPTIONS[name])]
    assert may_change(OPTIONS["rm_url"])


def test_the_plan_names_the_stage_and_the_teacher(tmp_path: Path) -> None:
    def made(**options: Any) -> Any:
        report = examine(valid_config(tmp_path, rollout_max_prompt_len=32, **options))
        assert report.errors == []
        return plan(report.config, report.model)

    without, distils = made(), made(**trainer(tmp_path))
    names = [name for name, _ in distils.tasks]
    assert names.index("reward") + 1 == names.index("forward") == names.index("advantage") - 1
    assert "forward" not in [name for name, _ in without.tasks]
    assert "the teacher visits for its pass, from host memory" in distils.memory[0].notes
    passes = [one.memory[0].parts["pass without gradient"] for one in (without, distils)]
    assert passes[1] - passes[0] == distils.memory[0].parts["weights"]
    server = made(**SERVER)
    assert server.memory[0].parts == without.memory[0].parts
    assert "forward" in [name for name, _ in server.tasks]
    assert "forward" not in without.changes[-1].kept
    assert "forward" in distils.changes[-1].kept
