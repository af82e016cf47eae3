"""What it saves to score samples while others are still generated.

    python benchmarks/streaming.py [--samples 256] [--median 2] [--spread 0.7] [--reward 0.05] [--workers 4]

Generation is simulated: all samples begin at once, and each is there after a time drawn from a log-normal distribution
(median in seconds, spread as the deviation of its logarithm; --seed), so that a few are late, as long answers are.
The reward is a function of the user that sleeps, in processes that run already. Both ways use the same times, one after
the other in one process; the table of scores must be the same. Printed: seconds of generation, seconds from its end to
the table of scores, and the ratio of the whole.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from relax_core.config.sections import RelaxConfig
from relax_core.rewards.choice import training_choice
from relax_core.rewards.pools import Pools
from relax_core.rewards.score import score_timed
from relax_core.rewards.stream import RewardStream

FUNCTION = """
import time

def reward(sample):
    time.sleep({seconds})
    return float(sample.index % 2)
"""


def rollout(count: int) -> pa.Table:
    """What a reward reads of a rollout."""
    return pa.table(
        {
            "sample_id": [f"000000-{i // 8:04d}-{i % 8:03d}" for i in range(count)],
            "group_id": [f"000000-{i // 8:04d}" for i in range(count)],
            "index": np.arange(count),
            "group_index": np.arange(count) // 8,
            "prompt": ["q"] * count,
            "response": ["an answer " * 200] * count,
            "response_length": [400] * count,
            "label": pa.nulls(count, pa.string()),
            "metadata": [json.dumps({"source": "simulated"})] * count,
            "status": ["completed"] * count,
        }
    )


async def generate(times: list[float], finished: RewardStream | None) -> None:
    """Every sample after its time."""

    async def one(place: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if finished is not None:
            finished.add(place)

    await asyncio.gather(*(one(place, seconds) for place, seconds in enumerate(times)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--median", type=float, default=2.0)
    parser.add_argument("--spread", type=float, default=0.7)
    parser.add_argument("--reward", type=float, default=0.05, help="seconds of a call")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    times = [options.median * rng.lognormvariate(0, options.spread) for _ in range(options.samples)]
    table = rollout(options.samples)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reward.py"
        path.write_text(FUNCTION.format(seconds=options.reward))
        reward = {"custom_rm_path": f"{path}:reward", "reward_num_workers": options.workers}
        config = RelaxConfig.model_validate({"reward": reward})
        with Pools(config) as pools:
            score_timed(table.slice(0, 8 * options.workers), config, pools)  # the processes start
            wholes, tables = [], []
            for streamed in (False, True):
                begin = time.perf_counter()
                stream = RewardStream(training_choice(config), config, pools, {}, table.take) if streamed else None
                asyncio.run(generate(times, stream))
                generated = time.perf_counter()
                scores, seconds = score_timed(table, config, pools, {}, stream)
                end = time.perf_counter()
                wholes.append(end - begin)
                tables.append(scores)
                print(
                    f"{'streamed' if streamed else 'afterwards':10}  generation {generated - begin:.2f} s, "
                    f"then {end - generated:.2f} s; scored before: {sum(seconds['streamed'].to_pylist())}"
                )
    assert tables[0].equals(tables[1])
    print(f"ratio {wholes[1] / wholes[0]:.2f}")


if __name__ == "__main__":
    main()
