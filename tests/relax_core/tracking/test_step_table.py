"""A step as a table for people."""

from relax_core.tracking.step_table import group_of, metric_rows, short, step_text

MANIFEST = {
    "metrics": {"grad_norm": 0.25, "loss": 0.5, "reward/max": 1.0, "reward/mean": 0.123456, "response_len/mean": 7.0},
    "seconds": {"generate": 2.5, "train": 1.0},
    "wall_seconds": 4.0,
    "tables": {
        "generate/rollout": {"path": "steps/000012/rollout.parquet", "rows": 32},
        "evaluate/sums": {"path": "steps/000012/eval/sums.parquet", "rows": 8},
    },
}


def test_metrics_are_in_groups_with_the_step_before_and_the_change_beside() -> None:
    before = {"metrics": {"loss": 0.75, "reward/mean": 0.123456}, "seconds": {"train": 1.0}, "wall_seconds": 3.0}
    rows = [tuple(row.values()) for row in metric_rows(MANIFEST, before)]
    assert rows == [
        ("reward", "reward/mean", "0.1235", "0.1235", ""),
        ("reward", "reward/max", "1", "", ""),
        ("learning", "loss", "0.5", "0.75", "-0.25"),
        ("learning", "grad_norm", "0.25", "", ""),
        ("rollout", "response_len/mean", "7", "", ""),
        ("seconds", "generate", "2.5", "", ""),
        ("seconds", "train", "1", "1", ""),
        ("seconds", "whole step", "4", "3", "+1"),
    ]


def test_the_first_step_has_nothing_before_it() -> None:
    assert {row["before"] for row in metric_rows(MANIFEST)} == {""}


def test_a_metric_that_nobody_knows_is_learned_from_and_a_kl_is_no_reward() -> None:
    assert group_of("my/own") == group_of("reward_kl") == "learning"
    assert group_of("eval/sums-pass@4") == "evaluation"
    assert group_of("critic/value_loss") == "critic"


def test_numbers_keep_four_digits() -> None:
    assert [short(value) for value in (1e-6, 12345.678, 32.0, 3, None, "x")] == [
        "1e-06",
        "1.235e+04",
        "32",
        "3",
        "",
        "x",
    ]


def test_the_text_of_a_step_names_its_files_and_the_command_that_shows_it() -> None:
    text = step_text("/my runs/one", 12, MANIFEST)
    assert "Files in `/my runs/one/steps/000012`: `rollout.parquet` (32 rows), `eval/sums.parquet` (8 rows)" in text
    assert "`relax show '/my runs/one' --step 12`" in text
