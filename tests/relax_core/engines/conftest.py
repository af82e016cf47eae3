"""One real SGLang engine for all tests that need one: a start takes half a minute."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import make_tiny

from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.engines.actor import EngineInfo, SGLangEngine
from relax_core.engines.spec import engine_spec

PASSED = {"sglang_gc_threshold": [700, 10, 5], "sglang_schedule_policy": "lpm", "sglang_dllm_fdfo": False}
"""Options of SGLang's own that the engine is started with."""


@dataclasses.dataclass
class TinyEngine:
    """A running engine in its reproducible setting, its first checkpoint (weights 0) and another one (weights 1)."""

    engine: SGLangEngine
    info: EngineInfo
    folders: tuple[Path, Path]

    @property
    def url(self) -> str:
        return self.info.url


@pytest.fixture(scope="session")
def sglang_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEngine]:
    folder = tmp_path_factory.mktemp("engine")
    folders = make_tiny(folder / "weights0", seed=0), make_tiny(folder / "weights1", seed=1)
    config = RelaxConfig()
    config.checkpoint.hf_checkpoint = str(folders[0])
    config.rollout.rollout_max_context_len = 1024
    config.sglang.sglang_enable_deterministic_inference = True
    config.run.engine_start_timeout = 300.0
    config = with_options(config, PASSED)
    engine = SGLangEngine(engine_spec(config, 0, "cpu", folder, {"COLOUR": "red"}))
    try:
        yield TinyEngine(engine, engine.start(), folders)
    finally:
        engine.stop()
