"""One new file is an estimator: a choice of the command line, rules, an entry of the list, advantages and a loss.

The choices of the options and the rules are made of the registry when they are imported, so the file is put into the
package first, in a process of its own.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

ONE_FILE = '''
"""Sign of the centred reward, and a loss that squares the log-ratio."""

from relax_core.algorithms.registry import Demand, EstimatorSpec, register


def advantages(inputs):
    import numpy as np

    from relax_core.algorithms.advantages import Advantages, spread_over_tokens

    spread = spread_over_tokens(inputs).advantages
    return Advantages(np.sign(spread), spread)


def loss(log_probs, old_log_probs, advantages, *, mask, eps_clip, sequences):
    from relax_core.algorithms.losses import PolicyLoss

    gap = (log_probs - old_log_probs) * mask
    return PolicyLoss(-advantages * gap + eps_clip * gap**2 * len(sequences), gap.detach() > eps_clip, -gap.detach())


register(
    EstimatorSpec(
        name="sign_of_reward",
        summary="Sign of the centred reward.",
        normalizer="group_mean",
        advantages=f"{__name__}:advantages",
        policy_loss=f"{__name__}:loss",
        min_group_size=3,
        loss_options=("eps_clip",),
        sequence_loss=True,
        sync_only=True,
        roles=("reference",),
        demands=(
            Demand(
                "entropy_coef",
                "must be above 0 with --advantage-estimator {advantage_estimator}: it has nothing else.",
                above=0,
                when="use_opsm",
            ),
        ),
        source="Nobody (2030)",
    )
)
'''

BEFORE = """
import sys
sys.path.insert(0, "tests")
from relax_core.algorithms import estimators
estimators.__path__.append(sys.argv[1])
estimators.discover()
"""


def run(folder: Path, code: str) -> str:
    (folder / "sign.py").write_text(ONE_FILE)
    done = subprocess.run(
        [sys.executable, "-c", BEFORE + code, str(folder)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_a_choice_and_is_listed_with_what_it_needs(tmp_path: Path) -> None:
    text = run(
        tmp_path,
        """
from relax_core.config.options import OPTIONS
from relax_core.config.parser import read_config
given = read_config(["--advantage-estimator", "sign_of_reward"])
assert given.config.algorithm.advantage_estimator == "sign_of_reward", given
option = OPTIONS["advantage_estimator"]
assert option.choices[-1] == "sign_of_reward" and len(option.choices) == 9
from relax_core.config.schema import run_file_schema
assert "sign_of_reward" in str(run_file_schema()["$defs"]["AlgorithmSection"]["properties"]["advantage_estimator"])
from flows.cli.main import main
main(["algorithms", "sign_of_reward"])
assert not {"torch", "numpy"} & set(sys.modules)
""",
    )
    assert text.splitlines() == [
        "sign_of_reward",
        "  Sign of the centred reward.",
        "  rewards: less the group's mean",
        "  needs: --n-samples-per-prompt 3 or more, no --disable-rewards-normalization, --kl-coef 0, no --fully-async,",
        "         --entropy-coef above 0 with --use-opsm, a role reference",
        "  takes: --eps-clip",
        "  source: Nobody (2030)",
    ]


def test_its_rules_apply(tmp_path: Path) -> None:
    text = run(
        tmp_path,
        """
from pathlib import Path
from configs import valid_config
from relax_core.config.examine import examine
def told(**options):
    config = valid_config(Path(sys.argv[1]), advantage_estimator="sign_of_reward", **options)
    print(*(str(problem) for problem in examine(config).problems), sep="\\n", end="\\n--\\n")
right = {"resource": {"actor": (1, 1), "rollout": (1, 1), "reference": (1, 1)}}
told(**right)
told(n_samples_per_prompt=2, disable_rewards_normalization=True, use_opsm=True)
told(**right, fully_async=True, allow_unwired=True)
told(**right, eps_clip_c=3.0)
""",
    )
    right, wrong, whole, idle = text.split("--\n")[:4]
    assert right.strip() == ""
    for part in (
        "--n-samples-per-prompt 2: leaves --advantage-estimator sign_of_reward no other response to compare with. Make"
        " it 3 or more.",
        "--disable-rewards-normalization: takes the baseline away from --advantage-estimator sign_of_reward.",
        "--entropy-coef 0.0: must be above 0 with --advantage-estimator sign_of_reward: it has nothing else.",
        '--resource: has no role reference, which --advantage-estimator sign_of_reward needs. Add "reference":[1,1].',
    ):
        assert part in wrong
    assert "--advantage-estimator sign_of_reward: cannot be used with --fully-async" in whole
    assert "--eps-clip-c 3.0: has no effect with --advantage-estimator sign_of_reward." in idle


def test_an_option_that_its_loss_does_not_take_leaves_its_training_alone(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.config.stages import stage_options
options = stage_options(with_options(RelaxConfig(), {"advantage_estimator": "sign_of_reward"}), "train")
assert "eps_clip" in options and "eps_clip_high" not in options and "sapo_tau_pos" not in options
""",
    )


def test_its_advantages_and_its_loss_run(tmp_path: Path) -> None:
    # rewards 3 and 1: centred 1 and -1. Log-ratios 0.5 and -0.5, two samples, eps_clip 0.1:
    # ((-0.5 + 0.1 x 0.25 x 2) + (-0.5 + 0.05)) / 2 = -0.45; gradient (-A + 2 x 0.1 x 2 gap) / 2
    text = run(
        tmp_path,
        """
import numpy as np, torch
from relax_core.algorithms.advantages import AdvantageInputs, compute_advantages
from relax_core.algorithms.assemble import PolicyObjective
from relax_core.algorithms.loss_parts import LossOptions, Tokens
from relax_core.algorithms.reduce import StepSize, step_weights
from relax_core.algorithms.registry import get_estimator
from relax_core.algorithms.rewards import normalize_rewards
from relax_core.algorithms.sequences import Sequences
spec = get_estimator("sign_of_reward")
rewards = normalize_rewards(np.array([3.0, 1.0]), ["g", "g"], kind=spec.normalizer)
result = compute_advantages(spec, AdvantageInputs(rewards, np.array([0, 1, 2]), np.ones(2, dtype=np.uint8)))
new, mask, offsets = torch.tensor([-1.0, -2.0], requires_grad=True), torch.ones(2), torch.tensor([0, 1, 2])
size = StepSize(2, 2)
tokens = Tokens(
    new, torch.from_numpy(result.advantages), mask, step_weights(mask, offsets, size, per_token=False),
    Sequences(offsets), old_log_probs=torch.tensor([-1.5, -1.5]),
)
parts = PolicyObjective(spec, LossOptions(eps_clip=0.1), size)(tokens)
parts.loss.backward()
print(result.advantages.tolist(), round(parts.loss.item(), 6), [round(x, 6) for x in new.grad.tolist()])
""",
    )
    assert text.strip() == "[1.0, -1.0] -0.45 [-0.4, 0.4]"
