from pathlib import Path

import pytest
from configs import valid_config

from relax_core.config.options import with_options
from relax_core.config.rules.kinds import changed, fills, is_changed, is_model, local, newest_iteration
from relax_core.config.sections import RelaxConfig
from relax_core.config.values import Values


def values(**options: object) -> Values:
    return Values(with_options(RelaxConfig(), options))


def test_an_option_that_follows_another_is_changed_when_it_differs_from_that(tmp_path: Path) -> None:
    assert not is_changed(values(), "critic_lr")
    assert not is_changed(values(critic_lr=1e-5, lr=1e-5), "critic_lr")
    assert is_changed(values(critic_lr=1e-5, lr=1e-6), "critic_lr")
    assert [place["option"] for place in changed(values(gamma=0.5, lambd=1.0), ("gamma", "lambd"))] == ["gamma"]


@pytest.mark.parametrize(
    ("place", "path"),
    [(None, None), ("", None), ("a/b", "a/b"), ("file:///a", "/a"), ("s3://a/b", None), ("zip::a", None)],
)
def test_what_is_on_this_machine(place: str | None, path: str | None) -> None:
    assert local(place) == path


def test_steps_of_checkpoints(tmp_path: Path) -> None:
    assert newest_iteration(tmp_path) is None
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("3")
    assert newest_iteration(str(tmp_path)) == 3
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert newest_iteration(str(tmp_path)) is None


@pytest.mark.parametrize("place", [None, "", "no/such", "s3://bucket/a", "x" * 300, "a\0b"])
def test_nothing_is_said_of_what_cannot_be_seen(place: str | None) -> None:
    assert newest_iteration(place) is None
    assert not is_model(place)


def test_a_model_folder(tmp_path: Path) -> None:
    assert is_model(valid_config(tmp_path).checkpoint.hf_checkpoint)


@pytest.mark.parametrize("template", [None, "", "a", "a/{rollout_id}", "{rollout_id:05d}", "{{x}}{rollout_id}"])
def test_templates_that_can_be_filled(template: str | None) -> None:
    assert fills(template, "rollout_id")


@pytest.mark.parametrize(
    "template", ["{", "}", "{}", "{0}", "{rank}", "{rollout_id.x}", "{rollout_id[0]}", "{rollout_id:q}"]
)
def test_templates_that_cannot(template: str) -> None:
    assert not fills(template, "rollout_id")
