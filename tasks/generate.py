"""Generate: the step's prompts through the engines, into ``rollout.parquet``.

Guarantee: the rows depend on the run's seed, the step, the prompts and the weights alone (as far as the engine is
deterministic); a repeated generation asks for the same samples with the same seeds. Another function of the user, or
another source of it, is another identity.
"""

from typing import Any

from relax_core.engines.profile import profiled
from relax_core.proxy import proxied
from relax_core.rollout.custom import custom_answer, load_generate
from relax_core.rollout.generate import run_generation
from relax_core.rollout.requests import step_requests
from relax_core.rollout.sampling import Sampling
from relax_core.rollout.table import rollout_table
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    path = run.config.rollout.custom_generate_function_path
    return {
        "weights": run.history.weights_id(run.base_version(step)),
        "prompts": run.prompts.fingerprint,
        "cursor": run.cursor(step).to_json(),
        **({"source": load_generate(path).source_hash} if path else {}),
    }


@stage("generate", _identity)
def generate(run: RunSession, step: int, key: str) -> StageRecord:
    """Responses and log-probs for the prompts of this step."""
    options = run.config
    requests, cursor = step_requests(run.prompts, run.cursor(step), step, options)
    context = options.rollout.rollout_max_context_len
    answer = custom_answer(
        options.rollout.custom_generate_function_path,
        options,
        run.tokenizer,
        context=context,
        longest=options.rollout.rollout_max_response_len,
    )
    urls = run.engines.urls
    with profiled(options, urls, step), proxied(options.debug.http_proxy if answer else None):
        generated = run_generation(
            requests,
            urls,
            Sampling.for_training(options),
            context=context,
            concurrency=options.sglang.sglang_server_concurrency,
            progress=run.progress.update,
            answer=answer,
        )
    table = rollout_table(
        generated,
        step=step,
        version=run.base_version(step),
        tokenizer=run.tokenizer,
        skip_special_tokens=options.rollout.rollout_skip_special_tokens,
    )
    reference = run.store.write_table(run.store.step_path(step, "rollout.parquet"), table)
    return StageRecord("generate", key, {"rollout": reference}, {"cursor": cursor.to_json()})
