from pathlib import Path

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.rules.mix import RULES
from relax_core.config.rules.rewards import RULES as REWARDS

RIGHT = {"rm_type": "mix", "reward_mix": {"gsm8k": 1, "overlong": {"max": 8, "buffer": 4}}}


def wrong(mix: object, text: str) -> tuple[str, Case]:
    return "mix-is-right", Case({"rm_type": "mix", "reward_mix": mix}, text, RIGHT)


CASES: list[tuple[str, Case]] = [
    wrong({}, "must name the parts of the sum and their weights"),
    wrong({"gsm8": 1}, "has the part 'gsm8', which is no reward and no shaping term. Did you mean 'gsm8k' or "),
    wrong({"gsm8k": "1"}, "gives the part gsm8k the weight '1', which must be a number."),
    wrong({"gsm8k": {"wieght": 1}}, "gives the part gsm8k the settings wieght; a reward has weight and key."),
    wrong({"gsm8k": 0}, "has no part with a weight other than 0."),
    wrong({"mix": 1}, "cannot have itself as a part."),
    wrong({"overlong": 1}, "gives the part overlong no 'max'."),
    wrong({"overlong": {"max": 8, "buffer": 0}}, "the buffer 0, which must be a whole number, 1 or more."),
    wrong({"overlong": {"max": 8, "buffer": 9}}, "the buffer 9, which must not be more than its max 8."),
    wrong({"overlong": {"max": 8, "buffer": 4, "min": 1}}, "the setting 'min'; it has max, buffer."),
    wrong({"language": {"language": "xx"}}, "the language 'xx', which must be one of ar, bg,"),
    wrong({"repetition": {"max": 1.0}}, "the max 1.0, which must be a number, 0 or less."),
    (
        "judged-part-has-a-judge",
        Case(
            {"rm_type": "mix", "reward_mix": {"judge": 1}},
            '--reward-mix {"judge": 1}: has a part that needs --genrm-model-path, the model that judges.',
            {"rm_type": "mix", "reward_mix": {"judge": 1}, "genrm_model_path": "{folder}/model"},
        ),
    ),
    (
        "remote-part-has-a-service",
        Case(
            {"rm_type": "mix", "reward_mix": {"remote_rm": 1}},
            '--reward-mix {"remote_rm": 1}: has the part remote_rm, which needs --rm-url, the address of its service.',
            {"rm_type": "mix", "reward_mix": {"remote_rm": 1}, "rm_url": "http://scores:8000"},
        ),
    ),
    (
        "overlong-is-reached",
        Case(
            {
                "rm_type": "mix",
                "rollout_max_response_len": 10,
                "reward_mix": {"gsm8k": 1, "overlong": {"max": 12, "buffer": 4}},
            },
            "has a part overlong that never goes below -0.5: no response is longer than --rollout-max-response-len 10.",
            RIGHT,
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, REWARDS, name, case)
