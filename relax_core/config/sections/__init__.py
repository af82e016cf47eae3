"""The options: one typed model per section of the specification, and our own.

Guarantee: a field's name is its flag (``n_samples_per_prompt`` is ``--n-samples-per-prompt``), names are unique over
all sections, and nothing in the project reads an option from anywhere else. Importing this package needs pydantic only.
"""

from relax_core.config.declare import Section
from relax_core.config.sections.algorithm import AlgorithmSection
from relax_core.config.sections.backend import BackendSection
from relax_core.config.sections.batch import BatchSection
from relax_core.config.sections.checkpoint import CheckpointSection
from relax_core.config.sections.cluster import ClusterSection
from relax_core.config.sections.data import DataSection
from relax_core.config.sections.debug import DebugSection
from relax_core.config.sections.eval import EvalSection
from relax_core.config.sections.fault_tolerance import FaultToleranceSection
from relax_core.config.sections.freeze import FreezeSection
from relax_core.config.sections.genrm import GenrmSection
from relax_core.config.sections.megatron import MegatronSection
from relax_core.config.sections.opd import OpdSection
from relax_core.config.sections.optimizer import OptimizerSection
from relax_core.config.sections.parallel import ParallelSection
from relax_core.config.sections.reward import RewardSection
from relax_core.config.sections.rollout import RolloutSection
from relax_core.config.sections.router import RouterSection
from relax_core.config.sections.run import RunSection
from relax_core.config.sections.scaling import ScalingSection
from relax_core.config.sections.sft import SftSection
from relax_core.config.sections.sglang import SglangSection
from relax_core.config.sections.tracking import TrackingSection
from relax_core.config.sections.training import TrainingSection

__all__ = ["RelaxConfig"]


class RelaxConfig(Section):
    """Everything that decides a run. Every field has a default: a test or a form can start from `RelaxConfig()`."""

    run: RunSection = RunSection()
    cluster: ClusterSection = ClusterSection()
    backend: BackendSection = BackendSection()
    checkpoint: CheckpointSection = CheckpointSection()
    data: DataSection = DataSection()
    rollout: RolloutSection = RolloutSection()
    sglang: SglangSection = SglangSection()
    batch: BatchSection = BatchSection()
    parallel: ParallelSection = ParallelSection()
    optimizer: OptimizerSection = OptimizerSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    freeze: FreezeSection = FreezeSection()
    sft: SftSection = SftSection()
    eval: EvalSection = EvalSection()
    reward: RewardSection = RewardSection()
    genrm: GenrmSection = GenrmSection()
    opd: OpdSection = OpdSection()
    fault_tolerance: FaultToleranceSection = FaultToleranceSection()
    scaling: ScalingSection = ScalingSection()
    tracking: TrackingSection = TrackingSection()
    router: RouterSection = RouterSection()
    training: TrainingSection = TrainingSection()
    debug: DebugSection = DebugSection()
    megatron: MegatronSection = MegatronSection()
