"""Options of the training data: the prompt file and its columns, the order of the prompts, pictures, videos and sound.

Guarantee: an option that would change a prompt and is not honoured is refused, except where it means nothing without
another refused option.
"""

from typing import Any

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, above

_PROMPTS = "relax_core/run/prompts.py"


class DataSection(Section):
    """Data"""

    title_zh = "数据配置"

    prompt_data: str | None = option(
        None,
        stages="generate",
        effect=_PROMPTS,
        zh="训练用的 prompt：JSONL 或 Parquet，可以是任意 fsspec URL，末尾可加行切片 `@[a:b]`。必填。",
    )
    """Training prompts: JSONL or Parquet, any fsspec URL, with an optional row slice `@[a:b]` (required)."""

    input_key: str = option("input", stages="generate", effect=_PROMPTS, zh="prompt 所在的列：文本，或消息列表。")
    """Column of the prompt: text, or a list of messages."""

    label_key: str | None = option(None, stages="generate", effect=_PROMPTS, zh="标签所在的列。默认：没有标签。")
    """Column of the label. Default: no labels."""

    conversation_key_map: dict[str, str] | None = option(
        None,
        stages="generate evaluate",
        effect=_PROMPTS,
        zh="消息改名用的 JSON 映射，作用于每条消息的键名和角色的取值，正文不变，"
        '例如 `{"from":"role","gpt":"assistant"}`。只在没有 --label-key 时起作用。默认：不改名。',
    )
    """New names for the keys of every message and for the values of its role (JSON), e.g. `{"from":"role",
    "gpt":"assistant"}`; the text stays as it is. Only without --label-key. Default: names stay."""

    metadata_key: str = option("metadata", stages="generate", effect=_PROMPTS, zh="元数据所在的列，内容是一个对象。")
    """Column of the metadata (an object)."""

    tool_key: str = option("tools", stages="generate", effect=_PROMPTS, zh="工具列表所在的列，会交给 chat template。")
    """Column of the tools given to the chat template."""

    apply_chat_template: bool = option(
        False, stages="generate evaluate", effect=_PROMPTS, zh="用 tokenizer 的 chat template 把 prompt 渲染成文本。"
    )
    """Render the prompt through the tokenizer's chat template."""

    apply_chat_template_kwargs: dict[str, Any] = option(
        {}, stages="generate evaluate", effect=_PROMPTS, zh="渲染 chat template 时另外传入的参数（JSON）。"
    )
    """Further arguments of the chat template (JSON)."""

    system_prompt: str | None = option(
        None,
        stages="generate evaluate",
        effect=_PROMPTS,
        zh="放在每个 prompt 开头的 system 消息；已有 system 消息的不变。默认：没有。",
    )
    """System message put before every prompt that has none. Default: none."""

    rollout_shuffle: bool = option(
        False,
        stages="generate",
        effect="relax_core/rollout/requests.py",
        zh="打乱 prompt 的顺序，每个 epoch 重新打乱。",
    )
    """Shuffle the prompts, anew each epoch."""

    rollout_seed: int = option(
        42,
        NOT_NEGATIVE,
        stages="generate evaluate",
        effect="relax_core/rollout/requests.py",
        zh="打乱顺序和采样共用的随机种子。",
    )
    """Seed of the shuffling and of the sampling."""

    use_streaming_dataset: bool = option(False, unwired="warn", zh="需要哪些行才读哪些行，而不是一开始全部读入内存。")
    """Read rows when they are needed, not all into memory at the start."""

    streaming_buffer_size: int = option(
        10000, COUNT, unwired="warn", zh="边读边打乱时缓冲区里的行数。需要 --use-streaming-dataset。"
    )
    """Rows among which a streamed data set is shuffled. Needs --use-streaming-dataset."""

    prefetch_chunk_size: int = option(
        32,
        COUNT,
        unwired="warn",
        zh="一次交给解码线程的样本数：大则吞吐高，也更占内存。需要 --use-streaming-dataset 和 --multimodal-keys。",
    )
    """Samples given to the decoding threads at a time: more is faster and takes more memory. Needs
    --use-streaming-dataset and --multimodal-keys."""

    prefetch_max_cached: int = option(
        256,
        NOT_NEGATIVE,
        unwired="warn",
        zh="最多提前解码多少个样本，满了就暂停；0 关闭提前解码。需要 --use-streaming-dataset 和 --multimodal-keys。",
    )
    """Samples decoded ahead, at most: decoding then waits until some are taken; 0 is off. Needs
    --use-streaming-dataset and --multimodal-keys."""

    prefetch_num_workers: int = option(
        1,
        COUNT,
        unwired="warn",
        zh="解码视频和图像的线程数；1 时逐个解码，可避开 FFmpeg 的线程安全问题。需要 --prefetch-max-cached 大于 0。",
    )
    """Threads that decode videos and images; with 1 nothing is decoded at the same time, which FFmpeg takes best. Needs
    --prefetch-max-cached above 0."""

    custom_prompt_path: str | None = option(
        None,
        stages="generate evaluate",
        effect="relax_core/rollout/hooks.py",
        zh="自定义函数 `convert(prompt, row) -> prompt`（`包.模块.函数` 或 `文件.py:函数`），"
        "在改名、渲染之前改写每个 prompt，评估集也一样。默认：原样使用。",
    )
    """Your function `convert(prompt, row) -> prompt`, as `package.module.function` or `file.py:function`: it rewrites
    every prompt, of evaluation too, before its keys are renamed and it is rendered. Default: prompts as they are."""

    data_source_path: str = option(
        "relax.engine.rollout.data_source.RolloutDataSourceWithBuffer",
        effect="relax_core/rollout/requests.py",
        honours=("relax.engine.rollout.data_source.RolloutDataSourceWithBuffer",),
        zh="提供 prompt 的类的点分路径。默认值代表 Relax 自带的数据源。",
    )
    """Dotted path of the class that hands out prompts. The default stands for Relax's own source."""

    start_rollout_id: int | None = option(
        None,
        NOT_NEGATIVE,
        unwired="refuse",
        zh="第一个 rollout step 的编号。默认：接着 checkpoint 的下一步，没有 checkpoint 则为 0。",
    )
    """Number of the first rollout step. Default: the one after the checkpoint, else 0."""

    multimodal_keys: dict[str, str] | None = option(
        None,
        unwired="refuse",
        zh='媒体类型到所在列的映射（JSON），例如 `{"image":"images"}`；prompt 里的 `<image>` 等占位符依次换成其内容。'
        "默认：只有文本。",
    )
    """Kind of medium to its column (JSON), e.g. `{"image":"images"}`; placeholders such as `<image>` in a prompt are
    filled from it in their order. Default: text alone."""

    use_audio_in_video: bool = option(False, unwired="warn", zh="读取视频时连同其中的声音。需要 --multimodal-keys。")
    """Read the sound of a video too. Needs --multimodal-keys."""

    image_max_token_num: int | None = option(
        None, COUNT, unwired="warn", zh="一张图像最多占多少 token，更大的会缩小。默认：16384。需要 --multimodal-keys。"
    )
    """Most tokens of an image; a larger one is scaled down. Default: 16384. Needs --multimodal-keys."""

    image_min_token_num: int | None = option(
        None, COUNT, unwired="warn", zh="一张图像最少占多少 token，更小的会放大。默认：4。需要 --multimodal-keys。"
    )
    """Fewest tokens of an image; a smaller one is scaled up. Default: 4. Needs --multimodal-keys."""

    video_min_token_num: int | None = option(
        None, COUNT, unwired="warn", zh="视频的一帧最少占多少 token。默认：128。需要 --multimodal-keys。"
    )
    """Fewest tokens of a video's frame. Default: 128. Needs --multimodal-keys."""

    video_max_token_num: int | None = option(
        None, COUNT, unwired="warn", zh="视频的一帧最多占多少 token。默认：768。需要 --multimodal-keys。"
    )
    """Most tokens of a video's frame. Default: 768. Needs --multimodal-keys."""

    video_fps: float | None = option(
        None, above(0), unwired="warn", zh="视频每秒取多少帧。默认：2.0。需要 --multimodal-keys。"
    )
    """Frames taken from a second of video. Default: 2.0. Needs --multimodal-keys."""

    video_fps_min_frames: int | None = option(
        None, COUNT, unwired="warn", zh="一段视频最少取多少帧。默认：4。需要 --multimodal-keys。"
    )
    """Fewest frames taken from a video. Default: 4. Needs --multimodal-keys."""

    video_fps_max_frames: int | None = option(
        None, COUNT, unwired="warn", zh="一段视频最多取多少帧。默认：768。需要 --multimodal-keys。"
    )
    """Most frames taken from a video. Default: 768. Needs --multimodal-keys."""

    image_resize_scale_factor: int | None = option(
        None,
        NOT_NEGATIVE,
        unwired="warn",
        zh="缩放后的边长取它的整数倍（像素），0 则不限。默认：模型 patch 合并块的边长，多为 28。需 --multimodal-keys。",
    )
    """Pixels of which a side is a multiple after scaling; 0: of nothing. Default: the side of the model's merged
    patch, mostly 28. Needs --multimodal-keys."""

    audio_sample_rate: int | None = option(
        None, COUNT, unwired="warn", zh="声音重采样后的采样率（Hz）。默认：16000。需要 --multimodal-keys。"
    )
    """Samples a second to which sound is resampled. Default: 16000. Needs --multimodal-keys."""

    frame_factor: int | None = option(
        None, COUNT, unwired="warn", zh="所取帧数总是它的整数倍。默认：2。需要 --multimodal-keys。"
    )
    """The number of frames taken is a multiple of it. Default: 2. Needs --multimodal-keys."""

    mm_processor_pool_size: int = option(
        0, NOT_NEGATIVE, unwired="warn", zh="处理媒体的进程数；0 改用线程。需要 --multimodal-keys。"
    )
    """Processes that prepare media; 0: threads do. Needs --multimodal-keys."""
