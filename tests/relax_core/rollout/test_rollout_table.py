"""Results as the rollout table, and the evaluation table and metrics."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from data.errors import UserError
from data.prompts import Prompt
from data.ragged import Ragged
from data.schema import EVAL, REWARD, ROLLOUT
from data.schema import table as schema_table
from relax_core.rollout.evaluate import evaluation_metrics, evaluation_table
from relax_core.rollout.generate import Generated
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.table import rollout_table


class Letters:
    """Token i is the i-th letter; 0 is a special token."""

    def batch_decode(self, sequences, *, skip_special_tokens, **options):
        assert options == {"clean_up_tokenization_spaces": False, "spaces_between_special_tokens": False}
        return [
            "".join("*" if i == 0 else chr(96 + i) for i in row if i or not skip_special_tokens) for row in sequences
        ]


def result(
    k: int,
    output: list[int],
    *,
    status: str = "completed",
    reason: str = "stop",
    versions: tuple[int, ...] = (4,),
    label: str | None = "7",
    by_token: list[int] | None = None,
) -> Generated:
    prompt = Prompt("00000009", "two plus", np.array([5, 6, 7], np.int32), label, {"rm_type": "gsm8k", "名": 1})
    request = SampleRequest(
        f"000004-0002-{k:03d}", "000004-0002", prompt, seed=100 + k, k=k, index=20 + k, group_index=10
    )
    return Generated(
        request,
        np.array(output, np.int32),
        np.array([-i / 10 for i in range(len(output))], np.float32),
        status,
        reason,
        versions,
        cached_tokens=2,
        token_versions=None if by_token is None else np.array(by_token, np.int32),
        abort_count=int(status == "aborted"),
    )


def test_hand_case():
    generated = [
        result(0, [1, 2, 0]),
        result(1, [3], status="aborted", reason="abort", label=None),
        result(2, [], status="truncated", reason="length", versions=()),
    ]
    table = rollout_table(generated, step=4, version=4, tokenizer=Letters())
    assert table.schema.equals(ROLLOUT, check_metadata=True)
    rows = table.to_pylist()
    assert [row["sample_id"] for row in rows] == ["000004-0002-000", "000004-0002-001", "000004-0002-002"]
    first = {name: value for name, value in rows[0].items() if value is not None}
    assert first.pop("rollout_log_probs") == pytest.approx([0, -0.1, -0.2])
    assert json.loads(first.pop("metadata")) == {"rm_type": "gsm8k", "名": 1}
    assert json.loads(first.pop("prefix_cache_info")) == {"cached_tokens": 2, "prompt_tokens": 3}
    assert first == {
        "sample_id": "000004-0002-000",
        "group_id": "000004-0002",
        "prompt_id": "00000009",
        "group_index": 10,
        "index": 20,
        "step": 4,
        "seed": 100,
        "prompt": "two plus",
        "tokens": [5, 6, 7, 1, 2, 0],
        "prompt_length": 3,
        "response_length": 3,
        "response": "ab*",
        "label": "7",
        "loss_mask": [1, 1, 1],
        "weight_versions": [4],
        "token_versions": [4, 4, 4],
        "status": "completed",
        "finish_reason": "stop",
        "remove_sample": False,
        "abort_count": 0,
    }
    assert (rows[1]["label"], rows[1]["status"], rows[1]["abort_count"]) == (None, "aborted", 1)
    # No engine was asked for the third: no version made it, nothing was cached.
    assert (rows[2]["tokens"], rows[2]["response"], rows[2]["weight_versions"]) == ([5, 6, 7], "", [])
    assert rows[2]["prefix_cache_info"] is None


def test_special_tokens_can_be_left_out():
    table = rollout_table([result(0, [1, 0])], step=4, version=4, tokenizer=Letters(), skip_special_tokens=True)
    assert table["response"].to_pylist() == ["a"]


def test_another_weight_version_is_an_error_naming_the_sample():
    with pytest.raises(UserError, match=r"000004-0002-000 was made by weights of version 4.*needs version 5"):
        rollout_table([result(0, [1])], step=5, version=5, tokenizer=Letters())
    assert rollout_table([result(0, [1])], step=5, version=None, tokenizer=Letters()).num_rows == 1
    mixed = result(0, [1, 2], versions=(3, 4), by_token=[3, 4])
    with pytest.raises(UserError, match="version 3, 4"):
        rollout_table([mixed], step=4, version=4, tokenizer=Letters())


def test_versions_are_kept_in_their_order():
    mixed = result(0, [1, 2, 2], versions=(3, 4), by_token=[3, -1, 4])
    table = rollout_table([mixed], step=4, version=None, tokenizer=Letters())
    assert table["weight_versions"].to_pylist() == [[3, 4]]
    assert table["token_versions"].to_pylist() == [[3, -1, 4]]


def test_a_token_of_weights_that_are_too_old_is_an_error_naming_the_sample():
    # Version -1 is a token that no engine made: it has no age.
    mixed = result(1, [1, 2, 2], versions=(3, 4), by_token=[3, -1, 4])
    assert rollout_table([mixed], step=5, version=None, oldest=3, tokenizer=Letters()).num_rows == 1
    with pytest.raises(UserError, match=r"000004-0002-001 has tokens of weights of version 3.*none older than .* 4"):
        rollout_table([result(0, [1]), mixed], step=5, version=None, oldest=4, tokenizer=Letters())
    nothing = result(0, [], versions=())
    assert rollout_table([nothing], step=5, version=None, oldest=4, tokenizer=Letters()).num_rows == 1


def test_parts_of_a_response_that_differ_in_length_make_no_result():
    with pytest.raises(ValueError, match="differ in length"):
        result(0, [1, 2], by_token=[4])
    with pytest.raises(ValueError, match="several weight versions"):
        result(0, [1, 2], versions=(3, 4))


def test_no_results_give_an_empty_table():
    assert rollout_table([], step=0, version=0, tokenizer=Letters()).num_rows == 0


def test_equal_results_give_equal_tables():
    generated = [result(0, [1, 2]), result(1, [3])]
    first, second = (rollout_table(generated, step=4, version=4, tokenizer=Letters()) for _ in range(2))
    assert first.equals(second)


def test_a_real_tokenizer_decodes_what_it_encoded(tiny_model: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    texts = ["4 + 3 = 7 .", " leading and  double  spaces", "naïve 数字 ½", "a<|im_end|>"]
    generated = [result(k, tokenizer(text, add_special_tokens=False)["input_ids"]) for k, text in enumerate(texts)]
    assert rollout_table(generated, step=4, version=4, tokenizer=tokenizer)["response"].to_pylist() == texts
    short = rollout_table(generated, step=4, version=4, tokenizer=tokenizer, skip_special_tokens=True)
    assert short["response"][3].as_py() == "a"


def rewards(ids: list[str], scores: list[float | None]) -> pa.Table:
    return schema_table(
        REWARD,
        {
            "sample_id": ids,
            "group_id": [sample_id[:11] for sample_id in ids],
            "reward": pa.array(scores, pa.float32()),
            "raw_reward": pa.array(scores, pa.float32()),
            "rm_type": ["gsm8k"] * len(ids),
        },
    )


def test_the_evaluation_table_joins_by_id():
    rollout = rollout_table([result(k, [1] * (k + 1)) for k in range(3)], step=-1, version=None, tokenizer=Letters())
    ids = rollout["sample_id"].to_pylist()
    table = evaluation_table(rollout, rewards([ids[2], ids[0], ids[1]], [0.0, 1.0, None]))
    assert table.schema.equals(EVAL, check_metadata=True)
    assert table["reward"].to_pylist() == [1.0, None, 0.0]
    assert table["step"].to_pylist() == [-1] * 3
    # Two of three are scored, one right: mean 1/2; pass@2 = 1 - C(1,2)/C(2,2) = 1. Lengths 1, 2, 3.
    assert evaluation_metrics("gsm", table) == pytest.approx(
        {
            "eval/gsm": 0.5,
            "eval/gsm-truncated_ratio": 0,
            "eval/gsm-response_len/mean": 2,
            "eval/gsm-response_len/max": 3,
            "eval/gsm-pass@1": 0.5,
            "eval/gsm-pass@2": 1,
        }
    )


def test_an_evaluation_without_scores_has_no_score_metric():
    rollout = rollout_table([result(0, [1])], step=-1, version=None, tokenizer=Letters())
    table = evaluation_table(rollout, rewards(rollout["sample_id"].to_pylist(), [None]))
    metrics = evaluation_metrics("gsm", table)
    assert "eval/gsm" not in metrics
    assert metrics["eval/gsm-response_len/mean"] == 1


def test_512_samples_of_2000_tokens():
    generated = [result(k, [1] * 2000) for k in range(512)]
    table = rollout_table(generated, step=4, version=4, tokenizer=Letters())
    assert Ragged.from_arrow(table["tokens"]).lengths.tolist() == [2003] * 512
    assert Ragged.from_arrow(table["loss_mask"]).values.all()
