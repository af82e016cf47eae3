"""The documentation fits the code: paths, options, links, generated pages; its Python blocks and queries run.

The blocks run in a folder that holds a small run ``runs/quickstart``, made of tables of the real schemas.
"""

import ast
import contextlib
import importlib.util
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from programs import program

from data.ragged import Ragged
from data.schema import EVAL, REWARD, ROLLOUT, table
from data.store import RunStore
from relax_core.config import RelaxConfig, dump, parse_arguments
from relax_core.config.options import OPTIONS
from relax_core.config.parser import flags as spellings

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FOLDERS = ("relax_core", "tasks", "flows", "data", "tests", "docs", "benchmarks", "deployments", "requirements")

PATH = re.compile(rf"(?<![\w/.:-])(?:{'|'.join(FOLDERS)})/[\w./-]*")
MODULE = re.compile(rf"\b(?:{'|'.join(FOLDERS[:4])})(?:\.[a-z_]\w*)+\.?\w*")
FLAG = re.compile(r"(?<![\w-])--[a-z][A-Za-z0-9_-]*[A-Za-z0-9]")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

OTHER_FLAGS = {"--help", "--version", "--config", "--rollout-batch-sise", "--check", "--json", "--dist", "--for"}
OTHER_FLAGS |= {"--again"}
"""Flags that are no option: of the command line itself, a misspelling that is shown, of docs/generate.py, pytest,
kubectl."""

STEMS = {"--sglang", "--eval", "--rollout", "--no"}
"""What stands before dots: `--eval-...`."""


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def every_page(function: Any) -> Any:
    return pytest.mark.parametrize("page", PAGES, ids=name)(function)


@every_page
def test_paths_that_are_named_exist(page: Path) -> None:
    named = {match.group().rstrip(".") for match in PATH.finditer(page.read_text())}
    assert {path for path in named if not (ROOT / path).exists()} == set()


@every_page
def test_modules_that_are_named_exist(page: Path) -> None:
    """``relax_core.config.stages``, ``flows.train.train``: a module, or a name that one defines."""
    wrong = set()
    for match in MODULE.finditer(page.read_text()):
        parts = match.group().split(".")
        exists = any(
            (ROOT / "/".join(parts)).with_suffix(".py").exists() or (ROOT / "/".join(parts)).is_dir()
            for parts in (parts, parts[:-1])
        )
        if not exists and parts[-1] not in ("parquet", "jsonl"):
            wrong.add(match.group())
    assert wrong == set()


def known_flags() -> set[str]:
    flags = {*spellings(), *OTHER_FLAGS, *STEMS}
    # of the commands that read their own arguments
    own = [*(ROOT / "flows/cli").glob("*.py"), ROOT / "deployments/register.py", *(ROOT / "docs").glob("*.py")]
    for path in [*own, *(ROOT / "benchmarks").rglob("*.py")]:
        flags |= set(re.findall(r'add_argument\(\s*"(--[a-z-]+)"', path.read_text()))
    return flags | flags_of_prefect()


def flags_of_prefect() -> set[str]:
    """What `prefect` takes, of the commands that the documentation uses."""
    package = importlib.util.find_spec("prefect")
    assert package is not None
    folder = Path(str(package.origin)).parent / "cli"
    names = ("deploy/_commands", "deployment", "flow_run", "work_pool", "work_queue", "worker")
    found = {flag for name in names for flag in re.findall(r'"(--[a-z-]+)"', (folder / f"{name}.py").read_text())}
    return {"--no-prompt", *found}


@every_page
def test_options_that_are_named_exist(page: Path) -> None:
    if page.name == "wrong-options.md":  # it is full of options that do not
        return
    assert set(FLAG.findall(page.read_text())) - known_flags() == set()


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in map(slug, HEADING.findall(file.read_text()))):
            broken.append(target)
    assert broken == []


def slug(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_pictures_are_shown_and_small() -> None:
    """``python docs/screenshots.py`` makes those of the interface anew."""
    shown = {(page.parent / target).resolve() for page in PAGES for target in LINK.findall(page.read_text())}
    pictures = {path.resolve() for path in (ROOT / "docs/pictures").rglob("*.png")}
    assert pictures - shown == set()
    assert [path for path in pictures if path.stat().st_size > 150_000] == []


def test_every_page_is_in_the_index() -> None:
    index = {(ROOT / "docs" / target).resolve() for target in LINK.findall((ROOT / "docs/index.md").read_text())}
    assert {
        name(page) for page in (ROOT / "docs").rglob("*.md") if page.name != "index.md" and page not in index
    } == set()


def test_generated_pages_are_up_to_date() -> None:
    """``python docs/generate.py`` makes them anew."""
    for path, text in program("docs/generate.py").pages().items():
        assert path.read_text() == text, f"{name(path)} is stale: python docs/generate.py"


def test_every_measured_figure_is_filled_in() -> None:
    assert {name(page): text.count("<<FIGURE") for page in PAGES if "<<FIGURE" in (text := page.read_text())} == {}


def test_both_readmes_have_the_same_parts() -> None:
    english, chinese = ((ROOT / file).read_text() for file in ("README.md", "README.zh.md"))
    assert len(HEADING.findall(english)) == len(HEADING.findall(chinese))
    assert FLAG.findall(english) == FLAG.findall(chinese)
    links = {link.replace(".zh.md", ".md") for link in LINK.findall(chinese)}
    assert set(LINK.findall(english)) - {"README.zh.md"} == links - {"README.md"}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_commands_of_the_documentation_parse() -> None:
    """``relax train`` and ``relax evaluate`` as they are typed, without files being looked at."""
    commands = [
        line
        for page in PAGES
        for kind, text in BLOCK.findall(page.read_text())
        if kind == "bash"
        for line in text.replace("\\\n", " ").splitlines()
        if line.startswith(("relax train", "relax evaluate"))
    ]
    assert len(commands) > 5
    for command in commands:
        words = [word for word in shlex.split(command, comments=True)[2:] if word != "..."]
        parse_arguments(words)


def test_deployments_of_the_documentation_take_these_parameters() -> None:
    """``prefect deployment run NAME --param ...``: the deployment is declared, the flow has the parameter, and the
    options in it exist and may have these values."""
    declared = yaml.safe_load((ROOT / "deployments/prefect.yaml").read_text())["deployments"]
    flows = {f"{one['entrypoint'].rpartition('.')[2]}/{one['name']}": one["entrypoint"] for one in declared}
    seen = set()
    for page in PAGES:
        for words in commands_of(page, "prefect deployment run"):
            name = words[0]
            assert name in flows, f"{name}: {page}"
            seen.add(name)
            given = [word.partition("=") for flag, word in itertools.pairwise(words) if flag == "--param"]
            assert {key for key, _, _ in given} <= parameters_of(flows[name]), words
            for key, _, value in given:
                if key == "config" and "$" not in value:
                    RelaxConfig.model_validate(json.loads(value))
                elif key == "options":
                    assert set(json.loads(value)) <= set(OPTIONS), words
    assert len(seen) >= 4


def commands_of(page: Path, start: str) -> Iterator[list[str]]:
    """Words behind ``start`` of each such command, whose quotes may reach over several lines."""
    text = page.read_text().replace("\\\n", " ")
    for found in re.finditer(rf"^ *{start} ", text, re.MULTILINE):
        command = ""
        for line in text[found.end() :].splitlines(keepends=True):
            command += line
            with contextlib.suppress(ValueError):  # a quote is still open
                yield shlex.split(command, comments=True)
                break


def parameters_of(entrypoint: str) -> set[str]:
    """Names of a function's arguments, from its source."""
    module, _, name = entrypoint.rpartition(".")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    found = next(node.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return {one.arg for one in (*found.args, *found.kwonlyargs)}


def test_yaml_blocks_can_be_read() -> None:
    for page in PAGES:
        for kind, text in BLOCK.findall(page.read_text()):
            if kind == "yaml":
                yaml.safe_load(text)


def test_the_quickstart_is_explained_as_it_is() -> None:
    """Every option of the script is in the tutorial's table."""
    script = (ROOT / "deployments/quickstart.sh").read_text()
    tutorial = (ROOT / "docs/tutorial.md").read_text()
    hidden = {"--rollout-shuffle", "--rollout-max-context-len", "--rollout-temperature"}
    assert set(FLAG.findall(script)) - set(FLAG.findall(tutorial)) <= hidden


def runnable() -> Iterator[Any]:
    for page in PAGES:
        blocks = [text for kind, text in BLOCK.findall(page.read_text()) if kind == "python"]
        if blocks:
            yield pytest.param(blocks, id=name(page))


@pytest.mark.parametrize("blocks", runnable())
def test_python_blocks_run(blocks: list[str], run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, one after the other, in one namespace."""
    monkeypatch.chdir(run_folder)
    names: dict[str, Any] = {"__name__": "documentation"}
    for block in blocks:
        ast.parse(block)
        exec(compile(block, "documentation", "exec"), names)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``runs/quickstart``: two steps of two groups of four samples."""
    from relax_core.algorithms.batch import training_batch
    from relax_core.tracking.jsonl import append_metrics
    from relax_core.tracking.metrics import step_metrics

    folder = tmp_path_factory.mktemp("documentation")
    store = RunStore(str(folder / "runs/quickstart"))
    config = RelaxConfig.model_validate({"rollout": {"rollout_batch_size": 2, "n_samples_per_prompt": 4}})
    for step in range(2):
        rollout, reward = tables(step)
        refs = [
            store.write_table(store.step_path(step, f"{kind}.parquet"), content)
            for kind, content in (
                ("rollout", rollout),
                ("reward", reward),
                ("batch", training_batch(rollout, reward, config)[0]),
            )
        ]
        append_metrics(store, step, {**step_metrics(rollout, reward), "loss": 0.0, "grad_norm": 1.0})
        seconds = {"generate": 1.0, "train": 2.0}
        store.write_manifest(step, {"step": step, "tables": refs, "seconds": seconds, "wall_seconds": 3.5})
    given = dict.fromkeys(("rollout_batch_size", "n_samples_per_prompt"), "command line")
    store.write_bytes("config.yaml", dump(config, given).encode())
    return folder


def tables(step: int) -> tuple[Any, Any]:
    """A rollout of eight samples with three response tokens each, and its rewards: 1, 0, 0, 0 and 0, 0, 0, 0."""
    ids = [f"{step:06d}-{group:04d}-{k:03d}" for group in range(2) for k in range(4)]
    groups = [sample_id.rpartition("-")[0] for sample_id in ids]
    count, prompt, response = len(ids), 5, 3
    lengths = np.full(count, response)
    columns = {
        "sample_id": ids,
        "group_id": groups,
        "prompt_id": [f"{int(group[-4:]):08d}" for group in groups],
        "group_index": np.repeat([0, 1], 4),
        "index": np.arange(count),
        "step": np.full(count, step),
        "seed": np.arange(count),
        "prompt": ["What is 2 + 3?"] * count,
        "tokens": Ragged.from_lengths(np.arange(count * (prompt + response), dtype=np.int32), lengths + prompt),
        "prompt_length": np.full(count, prompt),
        "response_length": lengths,
        "response": ["It is 5."] + ["It is 6."] * (count - 1),
        "label": [json.dumps("5")] * count,
        "metadata": [json.dumps({"a": 2, "b": 3})] * count,
        "loss_mask": Ragged.from_lengths(np.ones(count * response, np.uint8), lengths),
        "rollout_log_probs": Ragged.from_lengths(np.full(count * response, -0.5, np.float32), lengths),
        "weight_versions": [[step]] * count,
        "status": ["completed"] * count,
        "finish_reason": ["stop"] * count,
        "remove_sample": [False] * count,
        "abort_count": np.zeros(count, np.int64),
    }
    scores = [1.0] + [0.0] * (count - 1)
    reward = {
        "sample_id": ids,
        "group_id": groups,
        "reward": scores,
        "raw_reward": scores,
        "rm_type": ["exact_number"] * count,
    }
    return table(ROLLOUT, columns), table(REWARD, reward)


def test_schemas_of_the_documentation_are_those_of_the_code() -> None:
    text = (ROOT / "docs/reference/data.md").read_text()
    assert all(f"`{column}`" in text for column in EVAL.names)
