"""Configuration: one typed model per section, read from flags, YAML and the environment, resolved, checked, stored.

Guarantee: importing this package and reading a command line imports pydantic and yaml, and nothing heavier.
"""

from relax_core.config.derived import (
    data_parallel_size,
    longest_sample,
    model_parallel_size,
    num_engines,
    role_devices,
    samples_per_step,
    trainer_world_size,
)
from relax_core.config.eval_sets import EvalSet
from relax_core.config.examine import Report, check, examine, prepare, validate
from relax_core.config.model_files import read_model_folder
from relax_core.config.options import OPTIONS, SECTIONS, find_option, get_option, option_values, with_options
from relax_core.config.parser import Given, mark_derived, parse_arguments, read_config
from relax_core.config.problems import Problem
from relax_core.config.resolve import resolve
from relax_core.config.rules.base import Purpose
from relax_core.config.run_file import MAY_CHANGE, differences, dump, load, refuse_other_configuration
from relax_core.config.sections import RelaxConfig
from relax_core.config.sources import Source
from relax_core.config.stages import Stage, options_hash, stage_options

__all__ = [
    "MAY_CHANGE",
    "OPTIONS",
    "SECTIONS",
    "EvalSet",
    "Given",
    "Problem",
    "Purpose",
    "RelaxConfig",
    "Report",
    "Source",
    "Stage",
    "check",
    "data_parallel_size",
    "differences",
    "dump",
    "examine",
    "find_option",
    "get_option",
    "load",
    "longest_sample",
    "mark_derived",
    "model_parallel_size",
    "num_engines",
    "option_values",
    "options_hash",
    "parse_arguments",
    "prepare",
    "read_config",
    "read_model_folder",
    "refuse_other_configuration",
    "resolve",
    "role_devices",
    "samples_per_step",
    "stage_options",
    "trainer_world_size",
    "validate",
    "with_options",
]
