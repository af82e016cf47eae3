"""math, deepscaler, dapo, openr1mm, geo3k, mopd beyond the rows of the panel."""

import threading
from typing import Any

import pytest
from counting import calls
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.rewards import registry
from relax_core.rewards.builtin.dapo import WINDOW, stated_answer
from relax_core.rewards.builtin.math import looks_like_number
from relax_core.rewards.builtin.mopd import DOMAINS, mopd, scoring
from relax_core.rewards.builtin.tagged import candidate, tagged_answer, thinks_then_boxes
from relax_core.rewards.calls import Call, Scorer
from relax_core.rewards.pool import RewardPool
from relax_core.rewards.types import UNDECIDED, RewardInput, RewardSpec

KINDS = ("math", "deepscaler", "dapo", "openr1mm", "geo3k")


def sample(response: str, label: Any = "42", **metadata: Any) -> RewardInput:
    return RewardInput("000000-0000-000", "p", response, label, metadata)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "label", [True, [1], {"a": 1}, float("nan"), float("inf"), pytest.param(10**5000, id="digits")]
)
def test_a_label_that_is_no_answer_is_an_error_naming_sample_and_label(kind: str, label: Any) -> None:
    if kind == "geo3k" and isinstance(label, dict):
        return  # a dict without an answer is an empty label there
    spec = registry.get(kind)
    for function in (spec.quick, spec.function):
        assert function is not None
        with pytest.raises(UserError, match=r"label of sample 000000-0000-000 is neither text nor a number") as caught:
            function(sample(r"\boxed{1}", label))
        assert len(caught.value.problem) < 250


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_label_is_an_error_naming_the_option(kind: str) -> None:
    with pytest.raises(UserError, match="--label-key"):
        registry.get(kind).function(sample(r"\boxed{1}", None))


@pytest.mark.parametrize(
    ("label", "looks"),
    [
        ("42", True),
        ("-42", True),
        ("+4.5", True),
        (".5", True),
        ("3/4", True),
        (" 7 ", True),
        (r"\frac{1}{2}", True),
        (r"-\dfrac{1}{2}", True),
        (7, True),
        (0.5, True),
        (True, False),
        (None, False),
        ("A", False),
        ("<answer>A</answer>", False),
        ("x=5", False),
        ("4 apples", False),
        ("so\n#### 42", False),
        ("1,2", False),
        ("", False),
        (["42"], False),
    ],
)
def test_the_labels_that_math_is_inferred_from(label: Any, looks: bool) -> None:
    assert looks_like_number(label) is looks
    matches = registry.get("math").matches
    assert matches is not None
    assert matches(label) is looks


WRITTEN = r"\boxed{ } 42 4,2 \frac12 </think> <think> <answer> </answer> Answer: x #### $ \max(1,2) ^ { , ###Response"
PIECES = WRITTEN.split()
texts = st.lists(st.sampled_from([*PIECES, "\n", " "]), max_size=14).map("".join)


@given(texts, st.sampled_from(["42", r"\frac12", "x", "(1,2)", 42, 0.5, ""]), st.sampled_from(KINDS))
def test_no_response_raises_and_the_quick_score_is_the_full_one(response: str, label: Any, kind: str) -> None:
    spec = registry.get(kind)
    assert spec.quick is not None
    quick = spec.quick(sample(response, label))
    if quick is not UNDECIDED:
        assert quick == spec.function(sample(response, label))


HOSTILE = [*"\\{}#$-^\x00 ", "<answer>", "Answer:", "answer is ", "1,", r"\boxed{", r"\(", "Answer: **"]


@pytest.mark.parametrize("kind", [*KINDS, "gsm8k", "gsm8k_flexible", "exact_number"])
@pytest.mark.parametrize(
    "piece", [r"\boxed{1} ", "Answer: 1\n", "<answer>1</answer>", "#### 1\n", "1,", "{", "$x$ ", "</think>"]
)
def test_work_grows_with_the_response_and_no_faster(kind: str, piece: str) -> None:
    spec = registry.get(kind)
    function = spec.quick or spec.function
    function(sample(""))  # what is done once
    short, long = (calls(lambda n=n: function(sample(piece * n))) for n in (1000, 4000))
    assert long <= 4 * short + 200


@pytest.mark.parametrize("kind", [*KINDS, "gsm8k", "gsm8k_flexible", "exact_number"])
def test_a_megabyte_of_anything_is_scored_at_once(kind: str) -> None:
    # Quadratic patterns would need hours for these; the test's own time limit catches that.
    spec = registry.get(kind)
    function = spec.quick or spec.function
    for piece in HOSTILE:
        score = function(sample(piece * (10**6 // len(piece))))
        assert (score["score"] if isinstance(score, dict) else score) in (0, -1, UNDECIDED)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_the_same_in_a_thread(kind: str) -> None:
    response = "<think>a</think><answer>Answer: \\boxed{%s}</answer>"
    samples = [sample(response % answer) for answer in ("42", "41", "9^{9^{9^{9}}}", r"\max(42, 1)")]
    function = registry.get(kind).function
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(map(function, samples)))
    thread.start()
    thread.join()
    assert found == [function(each) for each in samples]


@pytest.mark.parametrize("kind", KINDS)
def test_thinking_that_the_prompt_opens_and_nothing_ends_is_no_answer(kind: str) -> None:
    response = r"<answer>\boxed{42}</answer> Answer: 42"
    function = registry.get(kind).function
    scores = []
    for prompt, text in (("p<think>\n", response), ("p<think>\n", f"a</think>{response}"), ("p", response)):
        score = function(RewardInput("s", prompt, text, "42"))
        scores.append(score["score"] if isinstance(score, dict) else score)
    assert scores == {"dapo": [-1, 1, 1], "geo3k": [0, 1.0, 0.9]}.get(kind, [0, 1, 1])


def test_dapo_looks_at_the_end_of_the_response_alone() -> None:
    assert stated_answer("Answer: 1" + "x" * (WINDOW - 10)) is not None
    assert stated_answer("Answer: 1" + " " * WINDOW) is None
    assert stated_answer("Answer: 1\nAnswer: 2\n") == "2"
    assert stated_answer("Answer: **1.**") == "1"
    assert stated_answer("") is None


def test_dapo_returns_the_same_keys_for_right_and_wrong() -> None:
    dapo = registry.get("dapo").function
    assert dapo(sample("Answer: 042")) == {"score": 1.0, "acc": 1.0, "pred": "042"}
    assert dapo(sample("Answer: 41")) == {"score": -1.0, "acc": 0.0, "pred": "41"}
    assert dapo(sample("41")) == {"score": -1.0, "acc": 0.0, "pred": "[INVALID]"}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{3}, not 4", "3"),
        ("it is $x=5$", "x=5"),
        (r"it is \(\frac12\) of 4", r"\frac12"),
        ("first 3, then 1,234.5", "1,234.5"),
        ("The answer is 7. I used 3 steps.", "3"),  # the last number of the line that states it
        ("The answer is $7$ of 9", "7"),
        ("The largest $n$ is 34.", "34"),
        (r"it is -\frac{10}{9}.", r"-\frac{10}{9}"),
        ("red", "red"),
        ("", ""),
    ],
)
def test_the_answer_that_a_text_gives(text: str, answer: str) -> None:
    assert candidate(text) == answer


def test_the_text_of_the_last_answer() -> None:
    assert tagged_answer("<answer> 1 </answer>") == "1"
    assert tagged_answer("<answer>1</answer><answer>2</answer>") == "2"
    assert tagged_answer("<answer>1") is None
    assert tagged_answer("1") is None


def test_the_form_of_geo3k() -> None:
    assert thinks_then_boxes(" <think>a</think> so \\boxed{1}.")
    for text in (
        r"<think>a</think>",
        r"\boxed{1}",
        r"<think>a\boxed{1}",
        r"a<think>b</think>\boxed{1}",
        r"</think><think>\boxed{1}",
    ):
        assert not thinks_then_boxes(text)


def test_mopd_scores_by_the_name_then_by_the_domain() -> None:
    assert scoring(sample("", mopd_rm_type="f1", domain="math")) == "f1"
    assert scoring(sample("", domain="Math ")) == "math"
    assert scoring(sample("", domain="none")) == "none"
    assert mopd(sample("#### 42", mopd_rm_type="boxed_gsm8k")) == 0.0
    assert set(DOMAINS.values()) <= set(registry.builtin_rewards())


def test_mopd_leaves_slow_rewards_to_the_full_function(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(sample: RewardInput) -> float:
        return 0.25

    def plain(sample: RewardInput) -> float:
        return 0.5

    quick = registry.get("mopd").quick
    assert quick is not None
    specs = {
        "slow": RewardSpec("slow", slow, True, "", ""),
        "apart": RewardSpec("apart", plain, False, "", "", isolated=True),
        "plain": RewardSpec("plain", plain, False, "", ""),
        "both": RewardSpec("both", plain, False, "", "", isolated=True, quick=lambda sample: 0.75),
    }
    monkeypatch.setattr(registry, "get", specs.__getitem__)
    scores = {name: quick(sample("", mopd_rm_type=name)) for name in specs}
    assert scores == {"slow": UNDECIDED, "apart": UNDECIDED, "plain": 0.5, "both": 0.75}
    assert mopd(sample("", mopd_rm_type="apart")) == 0.5
    waiting = mopd(sample("", mopd_rm_type="slow"))
    assert hasattr(waiting, "__await__")
    waiting.close()


def test_an_answer_that_sympy_does_not_finish_costs_its_own_time_limit() -> None:
    """A determinant of 36 symbols keeps sympy busy for minutes."""
    rows = r"\\".join("&".join(f"a_{{{i}{j}}}" for j in range(6)) for i in range(6))
    endless = rf"\boxed{{\begin{{vmatrix}}{rows}\end{{vmatrix}}}}"
    pairs = [("0", endless), ("4", r"\boxed{\max(3, 4)}"), ("4", r"\boxed{\max(3, 5)}"), ("4", r"\boxed{4}")]
    spec = registry.get("math")
    assert spec.quick is not None
    samples = [RewardInput(f"s-{i}", "p", response, label) for i, (label, response) in enumerate(pairs)]
    assert [spec.quick(each) for each in samples] == [UNDECIDED, UNDECIDED, UNDECIDED, 1.0]
    with RewardPool(1, 5.0) as pool:
        scored = Scorer(None, seconds=5.0, pool=lambda: pool)([Call(spec, (each,)) for each in samples])
    outcomes = [outcome for (outcome,) in scored]
    assert [outcome.score for outcome in outcomes] == [0.0, 1.0, 0.0, 1.0]
    assert "5 s" in str(outcomes[0].error)
    assert [outcome.error for outcome in outcomes[1:]] == [None] * 3
