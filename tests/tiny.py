"""Tiny random models for tests.

Guarantee: ``make_tiny`` writes an ordinary Hugging Face folder (float32 safetensors, config, byte-level BPE tokenizer
with a ChatML template) that transformers, SGLang and the trainer load like any other. The same arguments give the same
weights and the same tokenizer, and the global random state is left alone. A second's work, less than a megabyte.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

# How Qwen2's tokenizer splits text: transformers applies it to any tokenizer found beside a qwen2 model, so that
# with another rule the same folder would read text differently for different families.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

Family = Literal["qwen3", "llama", "qwen2"]

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny(
    folder: str | Path,
    family: Family = "qwen3",
    seed: int = 0,
    vocab: int = 512,
    tie: bool = False,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 128,
    head: int | None = None,
    words: int | None = None,
    initializer_range: float = 0.2,
    max_position_embeddings: int = 2048,
    corpus: Iterable[str] | None = None,
    marks: Sequence[str] = (),
) -> Path:
    """Write a tiny random causal language model and its tokenizer.

    Args:
        folder: where to; made when missing, files in it are overwritten.
        family: ``qwen3`` has query and key norms, ``qwen2`` biases on query, key and value, ``llama`` neither.
        seed: of the weights. The tokenizer depends on ``vocab``, ``corpus`` and ``marks`` only, so that two seeds share
            prompts.
        vocab: size of the tokenizer and of the embedding, at least 300 and even (tensor parallelism over two ranks).
        tie: whether the output layer shares the embedding's weights.
        layers, hidden, heads, kv_heads, ffn: the shape.
        head: size of a head, with ``qwen3``; None: ``hidden / heads``.
        words: of the tokenizer, where the embedding has more rows; None: ``vocab``.
        initializer_range: standard deviation of the matrices. Large, so that logits are far from flat and two seeds
            give different greedy texts. Biases and norm weights are drawn too, so that a mix-up of them shows.
        max_position_embeddings: longest sequence.
        corpus: texts from which the tokenizer learns its pairs; None: small sums.
        marks: texts that are one token wherever they stand.

    Returns:
        The folder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    if vocab < 300 or vocab % 2 or hidden % heads or heads % kv_heads:
        raise ValueError(
            f"tiny model: {vocab=} must be even and >= 300, {hidden=} % {heads=} and {heads=} % {kv_heads=} 0"
        )
    classes: dict[str, tuple[Any, Any]] = {
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    }
    config_class, model_class = classes[family]
    folder = Path(folder)
    tokenizer = _tokenizer(words or vocab, corpus, marks)
    shape = {"head_dim": head or hidden // heads} if family == "qwen3" else {}
    config = config_class(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=initializer_range,
        **shape,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).to(torch.float32)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # transformers starts biases at 0 and norm weights at 1
                    centre = 1.0 if "norm" in name else 0.0
                    parameter.copy_(centre + 0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(vocab: int, corpus: Iterable[str] | None, marks: Sequence[str]) -> Any:
    """Byte-level BPE with exactly ``vocab`` entries."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END, *marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = (
        f"What is {a} + {b}? The quick brown fox counts {a} and {b}: {a + b}, or {a * b}."
        for a in range(50)
        for b in range(50)
    )
    bpe.train_from_iterator(lines if corpus is None else corpus, trainer)
    missing = vocab - bpe.get_vocab_size()
    if missing > 0:  # the corpus has too few pairs for a large vocabulary: fill up with words that no text contains
        bpe.add_tokens([f"<unused{i}>" for i in range(missing)])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        chat_template=CHATML,
    )
