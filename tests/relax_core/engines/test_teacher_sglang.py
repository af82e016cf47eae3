"""The real SGLang as the teacher: its scores are those of transformers, and what it cannot do is refused."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from data.errors import UserError
from relax_core.engines.teacher import Scored, meet, score
from relax_core.weights.transport import push_weights

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]


@pytest.fixture
def teacher(sglang_engine):
    """The shared engine with its first model: other tests leave it with other weights, or in the middle of a push."""
    weights = load_file(sglang_engine.folders[0] / "model.safetensors")
    push_weights(weights.items(), [sglang_engine.url], 60, 2**20)
    return sglang_engine


def samples(vocabulary: int) -> list[Scored]:
    """Some that share a prompt, whose first tokens the server then has in its cache; with its last token and its 0."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, vocabulary, 20)
    tokens = [np.append(prompt, rng.integers(0, vocabulary, length)).astype(np.int32) for length in (1, 5, 12)]
    tokens.append(np.array([3, 5, vocabulary - 1, 0, vocabulary - 1], np.int32))
    return [Scored(f"s{i}", row, length) for i, (row, length) in enumerate(zip(tokens, (1, 5, 12, 3), strict=True))]


def test_scores_are_those_of_the_model(teacher) -> None:
    folder = teacher.folders[0]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    known = meet(f"{teacher.url}/generate", tokenizer, 1.0, longest=1000)
    assert known.vocabulary == 512
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    asked = samples(known.vocabulary)
    for one, found in zip(asked, score(known, asked, 1.0, concurrency=4), strict=True):
        ids = torch.from_numpy(one.tokens.astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None]).logits[0, -one.response_length - 1 : -1]
        wanted = logits.log_softmax(-1).gather(1, ids[-one.response_length :, None])[:, 0]
        assert found == pytest.approx(wanted.numpy(), abs=1e-3)
    assert known.longest is not None
    long = np.full(known.longest, 5, np.int32)
    [found] = score(known, [Scored("long", long, 2)], 1.0, concurrency=1)
    assert np.isfinite(found).all()
    with pytest.raises(UserError, match=r"Sample long at the teacher's server .*exceeds the maximum allowed length"):
        score(known, [Scored("long", np.append(long, np.int32(5)), 2)], 1.0, concurrency=1)


def test_a_temperature_that_it_ignores_is_refused(teacher) -> None:
    """Should a version of SGLang heed it, this test says so."""
    tokenizer = AutoTokenizer.from_pretrained(teacher.folders[0])
    with pytest.raises(UserError, match="scores given tokens at temperature 1"):
        meet(teacher.url, tokenizer, 0.8)
