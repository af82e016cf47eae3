"""The rules between options, by theme.

Guarantee: ``RULES`` holds every rule once, under a name of its own; each is broken by some configuration and kept by
another, which a test of it shows.
"""

from relax_core.config.rules.algorithms import RULES as ALGORITHMS
from relax_core.config.rules.asynchronous import RULES as ASYNCHRONOUS
from relax_core.config.rules.base import Purpose, Rule
from relax_core.config.rules.batch import RULES as BATCH
from relax_core.config.rules.checkpoints import RULES as CHECKPOINTS
from relax_core.config.rules.debugging import RULES as DEBUGGING
from relax_core.config.rules.evaluation import RULES as EVALUATION
from relax_core.config.rules.lengths import RULES as LENGTHS
from relax_core.config.rules.model import RULES as MODEL
from relax_core.config.rules.optimizer import RULES as OPTIMIZER
from relax_core.config.rules.parallel import RULES as PARALLEL
from relax_core.config.rules.passed import RULES as PASSED
from relax_core.config.rules.prompts import RULES as PROMPTS
from relax_core.config.rules.resources import RULES as RESOURCES
from relax_core.config.rules.rewards import RULES as REWARDS
from relax_core.config.rules.sampling import RULES as SAMPLING
from relax_core.config.rules.services import RULES as SERVICES
from relax_core.config.rules.sft import RULES as SFT

__all__ = ["RULES", "Purpose", "Rule"]

RULES: tuple[Rule, ...] = (
    *RESOURCES,
    *PARALLEL,
    *BATCH,
    *LENGTHS,
    *OPTIMIZER,
    *MODEL,
    *PASSED,
    *ALGORITHMS,
    *ASYNCHRONOUS,
    *CHECKPOINTS,
    *PROMPTS,
    *SAMPLING,
    *SFT,
    *EVALUATION,
    *REWARDS,
    *SERVICES,
    *DEBUGGING,
)
"""Every rule. Those that correct a value are applied first, in this order."""
