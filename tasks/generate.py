"""Generate: the step's prompts through the engines, into ``rollout.parquet``.

Guarantee: the rows depend on the run's seed, the step, the prompts and the weights alone (as far as the engine is
deterministic); a repeated generation asks for the same samples with the same seeds.
"""

from typing import Any

from relax_core.rollout.generate import run_generation
from relax_core.rollout.requests import step_requests
from relax_core.rollout.sampling import Sampling
from relax_core.rollout.table import rollout_table
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    return {
        "weights": run.history.weights_id(step),
        "prompts": run.prompts.fingerprint,
        "cursor": run.cursor(step).to_json(),
    }


@stage("generate", _identity)
def generate(run: RunSession, step: int, key: str) -> StageRecord:
    """Responses and log-probs for the prompts of this step."""
    options = run.config
    requests, cursor = step_requests(run.prompts, run.cursor(step), step, options)
    generated = run_generation(
        requests,
        run.engines.urls,
        Sampling.for_training(options),
        context=options.rollout.rollout_max_context_len,
        concurrency=options.sglang.sglang_server_concurrency,
        progress=run.progress.update,
    )
    table = rollout_table(
        generated,
        step=step,
        version=step,
        tokenizer=run.tokenizer,
        skip_special_tokens=options.rollout.rollout_skip_special_tokens,
    )
    reference = run.store.write_table(run.store.step_path(step, "rollout.parquet"), table)
    return StageRecord("generate", key, {"rollout": reference}, {"cursor": cursor.to_json()})
