"""Write the pages that are made from code: the reference of options (in two languages) and of tables, and the
transcript of wrong command lines.

    python docs/generate.py           write them
    python docs/generate.py --check   exit with 1 when a page is not what the code says

Guarantee: every option and every column is there, with the type, default and stages that the code has; an option or
column without a description stops the script. The same code gives the same bytes.
"""

import argparse
import json
import sys
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the project may not be installed

from data.schema import BATCH, EVAL, FORWARD, REWARD, ROLLOUT, STATUSES, schema_id  # noqa: E402
from docs.mistakes import transcript_page  # noqa: E402
from relax_core.config import OPTIONS, SECTIONS  # noqa: E402
from relax_core.config.options import PASSED_TO, Option, section_title  # noqa: E402
from relax_core.config.passthrough import pass_throughs, snapshot_version  # noqa: E402
from relax_core.config.run_file import may_change  # noqa: E402
from relax_core.config.stages import stages_of  # noqa: E402

REFERENCE = ROOT / "docs" / "reference"
NOTICE = "<!-- Made by docs/generate.py from the code: change the code and run the script, not this page. -->"

TAKES = {
    "bool": "switch",
    "int": "integer",
    "bytes": "size",
    "float": "number",
    "text": "text",
    "list": "list",
    "json": "JSON",
}

COLUMNS = {
    "sample_id": "`<step>-<group>-<sample>`, e.g. `000012-0003-001`; `eval-<set>-<row>-<sample>` in evaluation",
    "group_id": "the sample id without its last part: the samples of one prompt that are compared with each other",
    "prompt_id": "row of the prompt in its file, from 0, eight digits",
    "group_index": "number of the group over the whole run",
    "index": "number of the sample over the whole run",
    "step": "rollout step, from 0; -1 for the evaluation before training",
    "seed": "sampling seed that the engine was given",
    "prompt": "prompt as rendered by the chat template",
    "tokens": "token ids of prompt and response, P + R of them",
    "prompt_length": "P: tokens of the prompt",
    "response_length": "R: tokens of the response",
    "response": "decoded response",
    "label": "label of the prompt as JSON text",
    "metadata": "metadata of the prompt as the JSON text of an object",
    "loss_mask": "R values; 1: the token is trained on",
    "rollout_log_probs": "R values; log-probability of each sampled token as the engine computed it",
    "weight_versions": "weight versions that made the response, in order; empty where no engine was asked",
    "token_versions": "weight version that made each token, -1: no engine did; null in tables of version 1",
    "status": f"one of {', '.join(f'`{status}`' for status in STATUSES)}",
    "finish_reason": "the engine's word for why the response ended",
    "remove_sample": "kept for statistics, not trained on",
    "teacher_log_probs": "R values; log-probabilities of a teacher (on-policy distillation)",
    "rollout_routed_experts": "experts that the engine chose for each token",
    "train_metadata": "JSON text for the trainer",
    "session_id": "session of a conversation of several turns",
    "spec_info": "JSON text about speculative decoding",
    "prefix_cache_info": "JSON text: `cached_tokens` of `prompt_tokens` came from the engine's prefix cache",
    "abort_count": "how often generation was broken off",
    "multimodal_inputs": "images and the like, as the engine got them",
    "multimodal_train_inputs": "the same as the trainer wants them",
    "reward": "score; null: no score, which is not 0",
    "raw_reward": 'score for metrics: what the function put into `metadata["raw_reward"]`, else the score',
    "rm_type": "name of the reward, or the path of the user's own",
    "components": "JSON text: further numbers and texts that the function returned",
    "error": "why there is no score, or no true one",
    "outcome": "`scored`; `no_score`: the reward has none for it; `nan`: it returned NaN, which is never trained on; "
    "`failed`: the reward or the sample failed",
    "decision": "how the reward was found: `custom`, `explicit`, `inferred`, `fallback`, `distilled`",
    "decision_reason": "why it was not found as said: `no_type`, `unknown_type:<name>`, `conflict:<said>/<label's>`",
    "judge_prompt": "what a judge was asked, whole; null without one",
    "judge_output": "what it answered, with its reasoning",
    "old_log_probs": "R values; log-probabilities of the policy before the step's first update",
    "ref_log_probs": "R values; log-probabilities of the reference",
    "values": "R values; the critic's, before the token is known",
    "advantages": "R values; advantage of each token",
    "returns": "R values; return of each token",
    "slice": "part of the first global batch in which the row is trained on (--fully-async); null: behind it, or none",
}
"""Column -> what it holds; the same meaning in every table."""

TABLES = (
    (
        ROLLOUT,
        "steps/<step>/rollout.parquet",
        "One row per sample, written by the stage generate. Where steps begin more groups than they need,"
        " `buffer.parquet` beside it has rows of the same columns for the next step: `aborted` ones are gone on with.",
    ),
    (
        REWARD,
        "steps/<step>/reward.parquet",
        "One row per sample, written by the stage reward. `reward_seconds.parquet` beside it has the `seconds` of each"
        " sample's call (those of a group share one), and whether it was `streamed`: scored before the generation"
        " ended.",
    ),
    (
        FORWARD,
        "steps/<step>/forward.parquet",
        "One row per sample, written by the stage forward where advantages need passes of models; a column that nothing"
        " needs is null.",
    ),
    (BATCH, "steps/<step>/batch.parquet", "One row per sample to train on, written by the stage advantage."),
    (
        EVAL,
        "steps/<step>/eval/<set>.parquet`, `steps/<step>/eval_before/<set>.parquet`,"
        " `evaluations/<version>/<set>.parquet",
        "One row per evaluation sample: the columns of rollout and reward side by side.",
    ),
)


WORDS = {
    "en": {
        "title": "Options",
        "intro": "Of `relax train`, `relax evaluate` and `relax doctor`. How they are written is in [cli.md](cli.md);"
        " `relax explain --OPTION` tells all of one. *Decides* names the stages whose output an option changes: it is"
        " part of their identity, so that a stage of an unfinished step that was made under another value runs again."
        " *Fixed*: a run cannot be gone on with under another value. *Takes effect* names the module; an option that"
        " nothing honours yet says whether a run that sets it warns or is refused.",
        "head": "| Option | Takes | Default | Decides | Fixed | Takes effect | |",
        "yes": "yes",
        "warn": "not yet: warns",
        "refuse": "not yet: refused",
        "only": "only",
        "passed": "Every other option of {package} is taken too: see [passed-options.md](passed-options.md).",
    },
    "zh": {
        "title": "配置项",
        "intro": "`relax train`、`relax evaluate` 与 `relax doctor` 的全部选项。写法见 [cli.md](cli.md)；"
        "`relax explain --OPTION` 给出单个选项的全部信息。“决定”列出输出随该选项改变的阶段：选项是阶段标识的一部分，"
        "未完成的一步里用其他值做出的阶段会重新运行。“固定”：续跑时不能改用其他值。“生效位置”是读取它的模块；"
        "尚未实现的选项注明设置后是警告还是拒绝运行。",
        "head": "| 选项 | 取值 | 默认值 | 决定 | 固定 | 生效位置 | 说明 |",
        "yes": "是",
        "warn": "未实现：警告",
        "refuse": "未实现：拒绝",
        "only": "仅",
        "passed": "{package} 的其余选项同样接受：见 [passed-options.md](passed-options.md)。",
    },
}


def options_page(language: str) -> str:
    """The options, a table a section, in English (``en``) or Chinese (``zh``)."""
    words = WORDS[language]
    lines = [f"# {words['title']}", "", NOTICE, "", words["intro"]]
    for section, model in SECTIONS.items():
        options = [option for option in OPTIONS.values() if option.section == section]
        title = model.title_zh if language == "zh" else section_title(section)
        lines += ["", f"## {title} (`{section}`)", ""]
        notes = (model.__doc__ or "").strip().partition("\n")[2].split()
        if notes and language == "en":
            lines += [" ".join(notes), ""]
        lines += [words["head"], "|---|---|---|---|---|---|---|"]
        lines += [_option_row(option, language) for option in options]
        if section in PASSED_TO:
            lines += ["", words["passed"].format(package=PASSED_TO[section])]
    return "\n".join(lines) + "\n"


def _option_row(option: Option, language: str) -> str:
    words = WORDS[language]
    text = option.help_zh if language == "zh" else option.help
    if not text:
        raise SystemExit(f"{option.flag} has no description in relax_core/config/sections")
    takes = " \\| ".join(option.choices) if option.kind == "choice" else TAKES[option.kind]
    default = "" if option.default is None else f"`{_cell(option.show(option.default))}`"
    fixed = "" if may_change(option) else words["yes"]
    if option.unwired:
        effect = words[option.unwired]
    else:
        effect = f"`{option.effect}`"
        if option.details.honours is not None:
            effect += f" ({words['only']} {', '.join(option.show(value) for value in option.details.honours)})"
    stages = ", ".join(stages_of(option))
    return f"| `{option.flag}` | {takes} | {default} | {stages} | {fixed} | {effect} | {_cell(text)} |"


def passed_page() -> str:
    """The options of Megatron and SGLang that are passed through."""
    lines = [
        "# Options of Megatron and SGLang",
        "",
        NOTICE,
        "",
        "Every option of the two packages is taken under the package's own name, SGLang's with `--sglang-` before it,"
        " and checked before anything starts. *passed*: handed over as given. *shape*: describes the model and must"
        " agree with its config.json, which decides. *owned*: Relax sets it; another value is refused. An option that"
        " is also in [options.md](options.md) is described there. The lists come from snapshots of the packages,"
        " which `python docs/snapshots.py` writes anew.",
    ]
    for section, package in PASSED_TO.items():
        lines += ["", f"## {package} {snapshot_version(section)}", ""]
        lines += ["| Option | Off | Takes | Default | |", "|---|---|---|---|---|"]
        for passed in pass_throughs().values():
            if passed.section == section and passed.name not in OPTIONS:
                takes = " \\| ".join(map(str, passed.choices)) if passed.kind == "choice" else TAKES[passed.kind]
                off = f"`{passed.negation}`" if passed.negation else ""
                default = "" if passed.default is None else f"`{_cell(json.dumps(passed.default))}`"
                lines.append(f"| `{passed.flag}` | {off} | {takes} | {default} | {passed.role} |")
    return "\n".join(lines) + "\n"


def data_page() -> str:
    """The tables, a section each."""
    lines = [
        "# Tables",
        "",
        NOTICE,
        "",
        "Every table of a run is a Parquet file. Name and version of its schema are in the file's metadata under"
        " `relax.schema`; `data/schema.py` defines them. Rows of different tables are matched by `sample_id`, never by"
        " position. P and R are the tokens of prompt and response.",
    ]
    for schema, path, text in TABLES:
        lines += ["", f"## {schema_id(schema)}", "", f"`{path}`. {text}", ""]
        lines += ["| Column | Type | Null | |", "|---|---|---|---|"]
        lines += [_column_row(field) for field in schema]
    return "\n".join(lines) + "\n"


def _column_row(field: pa.Field) -> str:
    if field.name not in COLUMNS:
        raise SystemExit(f"docs/generate.py has no description of the column {field.name}")
    kind = f"list of {field.type.value_type}" if pa.types.is_list(field.type) else str(field.type)
    return f"| `{field.name}` | {kind} | {'yes' if field.nullable else ''} | {_cell(COLUMNS[field.name])} |"


def _cell(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("<", "&lt;") if "`" not in text else text.replace("|", "\\|")


def pages() -> dict[Path, str]:
    """Every generated page and its text."""
    return {
        REFERENCE / "options.md": options_page("en"),
        REFERENCE / "options.zh.md": options_page("zh"),
        REFERENCE / "passed-options.md": passed_page(),
        REFERENCE / "data.md": data_page(),
        ROOT / "docs" / "how-to" / "wrong-options.md": transcript_page(),
    }


def main() -> int:
    """Write or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare, and fail on a difference")
    check = parser.parse_args().check
    stale = []
    for path, text in pages().items():
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not check:
            path.write_text(text)
    print(f"{'differs' if check else 'written'}: {', '.join(stale)}" if stale else "up to date")
    return int(check and bool(stale))


if __name__ == "__main__":
    raise SystemExit(main())
