"""Reading launch scripts. Where bash is at hand, what is expected here is what bash itself makes of the same text."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.config.shell import Launch, read_launch

SCRIPTS = Path(__file__).parent / "scripts"
BASH = shutil.which("bash", path="/usr/bin:/bin")
needs_bash = pytest.mark.skipif(BASH is None, reason="no bash")


def words_of(script: str) -> list[str]:
    """The words that a script passes to `python train.py`."""
    return list(read_launch(script).arguments)


def run_bash(script: str, folder: Path, **environment: str) -> list[str]:
    """The same by bash: `python` is a function that shows its words, and no program but these can be found."""
    assert BASH
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("basename", "dirname", "seq", "tr", "wc", "cat"):
        if not (programs / name).exists():
            (programs / name).symlink_to(str(shutil.which(name, path="/usr/bin:/bin")))
    empty = folder / "empty"
    empty.mkdir(exist_ok=True)
    start = 'python() { shift; (( $# == 0 )) || printf "%s\\0" "$@" >&3; exit; }\n'
    start += 'nohup() { "$@"; }; torchrun() { python "$@"; }\n'
    done = subprocess.run(
        [BASH, "-c", f"exec 3>&1 >/dev/null\n{start}{script}"],
        cwd=empty,
        env={"PATH": str(programs), "LC_ALL": "C.UTF-8", **environment},
        capture_output=True,
        timeout=20,
        check=False,
    )
    return done.stdout.decode().split("\0")[:-1]


def read_file(name: str, **variables: str) -> Launch:
    return read_launch((SCRIPTS / name).read_text(), folder=str(SCRIPTS), variables=variables)


def texts(launch: Launch) -> list[str]:
    return [note.text for note in launch.notes]


def cases(name: str) -> dict[str, tuple[str, list[str], list[tuple[int, str]]]]:
    """The scripts of a file by their names, with the words and the notes that they lead to."""
    found = {}
    for block in (SCRIPTS / name).read_text().split("\n### ")[1:]:
        title, rest = block.split("\n", 1)
        script, expected = re.split(r"^#=", rest, maxsplit=1, flags=re.MULTILINE)
        words, *notes = re.split(r"^#! ", expected, flags=re.MULTILINE)
        lines = [(int(line), part.strip()) for line, part in (note.split(" ", 1) for note in notes)]
        found[title] = script, shlex.split(words), lines
    return found


FORMS = cases("forms.sh")
UNKNOWN = cases("unknown.sh")


@pytest.mark.parametrize("form", FORMS)
def test_words_are_those_of_bash(form: str, tmp_path: Path) -> None:
    script, expected, _ = FORMS[form]
    launch = read_launch(script)
    assert list(launch.arguments) == expected
    if BASH:
        assert run_bash(script, tmp_path) == expected


def test_ends_of_lines_may_be_those_of_windows() -> None:
    assert words_of('\ufeffA=(\r\n a\r\n)\r\npython train.py \\\r\n "${A[@]}"\r\n') == ["a"]


SAFE = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=12)


@given(st.lists(SAFE, max_size=6))
def test_quoted_words_come_back(words: list[str]) -> None:
    quoted = [shlex.quote(word) for word in words]
    assert words_of(f"python3 train.py {' '.join(quoted)}") == words
    lines = "\n".join(f"  {word}  # {number}" for number, word in enumerate(quoted))
    assert words_of(f'A=(\n{lines}\n)\npython3 train.py "${{A[@]}}"') == words
    assert words_of(f'f() {{ relax train "$@"; }}\nf {" ".join(quoted)}') == words
    for word, value in zip(quoted, words, strict=True):
        assert words_of(f'export A={word}\npython3 train.py "$A" "${{A}}"') == [value, value]


@given(SAFE)
def test_variables_come_back(value: str) -> None:
    launch = read_launch('export B="$A"\npython train.py "$A" "${A:-}"', variables={"A": value})
    assert launch.arguments == (value, value)
    assert launch.environment == {"B": value}


SYNTAX = r"""
if |then |else |fi |for x in |do |done |while |case | esac | in |{ |} |( |) |(( | ))|[[ | ]] |[ |] |&|;|;;|<<<|>|2>&1|
$(|$((|${|}|\|$|$X|${X:-|${X%|${#X}|${X[@]}|$@|$1|X=|X+=|X=(|export |local |f() |f |# |*|[|]|!|a|1|1+|{a,b}|{1..3}|==|
=~|-z |-eq |@(|read X |set -- |printf |%s|echo |eval |source |bash -c |ray job submit --runtime-env-json |env A=1 |
declare -A |exit 1|return|break|python train.py |"|'|`| |<<E|E
"""
PIECES = [*SYNTAX.replace("|\n", "|").strip("\n").split("|"), "\n", "\n", "&&", "||", "|", "<<E\n", "\nE\n"]


@settings(max_examples=400)
@given(st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=25).map("".join)))
def test_any_text_is_read_or_is_an_error_for_the_person(text: str) -> None:
    for script in (text, f"{text}\npython train.py $X"):
        try:
            launch = read_launch(script)
        except UserError:
            continue
        assert all(note.text.endswith((".", "?")) and note.line >= 0 for note in launch.notes)


def one(*choices: str) -> st.SearchStrategy[str]:
    return st.sampled_from(choices)


def some(part: st.SearchStrategy[str], least: int = 0, most: int = 3) -> st.SearchStrategy[str]:
    return st.lists(part, min_size=least, max_size=most).map("".join)


def escaped(text: str) -> str:
    return re.sub(r'(["$\\`])', r"\\\1", text)


# Random scripts of what bash and this reader must see alike. The corners where bash surprises are left out: braces and
# `$name"..."` in defaults, `&` in replacements. `U` is never set, `V` is an empty array.
RAW = st.text(" ab/.=,:{}[]*?\"'$\\\n\t;&|<>()#~x1é`", max_size=5)
NAME = one("A", "B", "C", "U")
ARRAY = one("L", "K", "V")
PATTERN = some(one("a", "b", "*", "?", ".", "[ab]", "[!a]", "'*'", '"?"'), least=1)
DEFAULT = some(one("ab", "${B}", " ", "'x y'", "\\a", '"${A}"', '"a b"', '""'))
NUMBER = one("1", "7", "N", "$N", "M", "0x1F", "010", "-4", "${#A}", "(3-5)")
OPERATOR = one("+", "-", "*", "<<", ">>", "&", "|", "^", "&&", "||", "==", "!=", "<", "<=", ">", ">=", "?1:")
SUM = st.builds("{} {} ({} {} {})".format, NUMBER, OPERATOR, NUMBER, OPERATOR, NUMBER)
PARAMETER = st.one_of(
    st.builds("${{{}}}".format, NAME),
    st.builds("${{{}{}{}}}".format, NAME, one(":-", "-", ":+", "+"), DEFAULT),
    st.builds("${{{}{}{}}}".format, NAME, one("%", "%%", "#", "##"), PATTERN),
    st.builds("${{{}{}{}/{}}}".format, NAME, one("/", "//", "/#", "/%"), PATTERN, one("", "z", "q r", '"${B}"')),
    st.builds("${{{}{}}}".format, NAME, one(":1", ":0:2", ": -2", "^", "^^", ",", ",,")),
    st.builds("${{{}[@]{}}}".format, ARRAY, one("", "", ":1", ":0:2", "%b", "/a/b", "^^")),
    st.builds("${{{}[*]}}".format, ARRAY),
    st.builds("${{#{}}}".format, st.one_of(NAME, ARRAY.map("{}[@]".format))),
    st.builds("${{{}[{}]}}".format, one("L", "K"), one("0", "-1", "N")),
    st.builds("$(({}))".format, SUM),
    st.builds("$(echo {})".format, one("$A", '"$A"', "x  y", "'x  y'", '"${L[@]}"')),
    one("${!P}", "${!L[@]}", "$(seq 1 2 5)", "$(dirname x/$B)", "$(printf '%03d|%-3s|%.2s' 7 ab cde)"),
)
DOUBLE = some(st.one_of(RAW.map(escaped), PARAMETER)).map('"{}"'.format)
BRACES = one("{a,b}", "{1..3}", "{x,}", "{a{b,c},d}", "{01..3}", "{}", "{a}", 'a{,"b c"}d')
PLAIN = st.text("ab1/.,:=_%+@x^-]", min_size=1, max_size=4)
ANSI = one(r"$'a\tb\'c\x41\n'")
WORD = some(st.one_of(PLAIN, RAW.map(shlex.quote), DOUBLE, PARAMETER, BRACES, ANSI), least=1).map("w{}".format)
TEST = st.one_of(
    st.builds("[ {} {} ]".format, one("-z", "-n", "! -z"), one('"$A"', '"$C"', '"$U"', "$U")),
    st.builds("[ {} {} {} ]".format, one('"$A"', '"$C"', "x"), one("=", "!="), one('"$A"', '"$B"', "x")),
    st.builds("[[ {} {} {} ]]".format, one("$A", '"$B"', "$U"), one("==", "!="), PATTERN),
    st.builds("(( {} ))".format, SUM),
    one('[ "$N" -gt 2 ]', "[[ N -le 3 && -n $A ]]", "[[ -z $A || $B =~ ^/x/(y) ]]", '! [ "$N" -eq 3 -o -n "$U" ]'),
)
TURN = st.one_of(st.builds("N=$(( {} ))".format, SUM), st.builds("R+=( {} \\\n {} )".format, WORD, WORD))
STEP = st.one_of(
    TURN,
    st.builds("{}={}".format, one("A", "B", "C"), WORD),
    st.builds("{}+={}".format, one("A", "B"), WORD),
    st.builds("{}=( {}\n # ) \n {} )".format, one("L", "K"), WORD, WORD),
    st.builds("{}+=( {} )".format, one("L", "K"), WORD),
)
BLOCK = st.one_of(
    STEP,
    st.builds("if {}; then\n{}\nelif {}; then {}\nelse\n{}\nfi".format, TEST, STEP, TEST, STEP, STEP),
    st.builds("{} && {} || {}".format, TEST, STEP, STEP),
    st.builds('for x in {} {}; do\nR+=( "$x" )\n{}\ndone'.format, WORD, WORD, TURN),
    st.builds("for ((i=0; i<2; i++)); do {}; done".format, TURN),
    st.builds("case {} in\n{}|z) {} ;;\n*) {}\nesac".format, one('"$A"', "$C", "x"), PATTERN, STEP, STEP),
    st.builds('f() {{ local A="$1"; R+=( "$#" "$@" "$A" ); {}\n}}\nf {} {}'.format, STEP, WORD, WORD),
    st.builds("( {} )".format, STEP),
    st.builds('A=$(cat <<E\nx $B "y" \\$z\nE\n)\n{}'.format, STEP),
)
SETTING = "set -f\nA='a b'; B=/x/y.z; C=; N=3; M=5; P=A; L=(one 'two 2' '' three/a); K=(a); V=()\nR=()\n"


@needs_bash
@settings(max_examples=150, deadline=None, derandomize=True)  # bash has more corners than are left out here
@given(blocks=st.lists(BLOCK, min_size=1, max_size=4), last=WORD)
def test_random_scripts_are_read_as_bash_runs_them(
    blocks: list[str], last: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    script = f'{SETTING}{chr(10).join(blocks)}\npython train.py "${{R[@]}}" {last}'
    folder = tmp_path_factory.getbasetemp() / "bash"
    folder.mkdir(exist_ok=True)
    launch = read_launch(script)
    assert list(launch.arguments) == run_bash(script, folder)
    assert all("is not set" in text or "is a pattern of files" in text for text in texts(launch))


DENSE = shlex.split("""
    --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate --update-weight-buffer-size 536870912 --num-layers 4
    --hidden-size 64 --moe-layer-freq [0,1,1,1] --moe-other-freq [0]*1+[1]*3 --moe-shared-expert-intermediate-size 192
    --rotary-base 10000 --hf-checkpoint /data/models/small-chat --ref-load /data/models/small-chat --save
    /data/runs/small run --save-interval 20 --prompt-data /data/sums.jsonl --input-key question --apply-chat-template
    --num-rollout 100 --rollout-batch-size 16 --n-samples-per-prompt 8 --rollout-temperature 1 --eval-prompt-data sums
    /data/sums-test.jsonl more /data/more-test.jsonl --sglang-cuda-graph-bs 1 2 4 8 12 --wandb-key
""")
"""The options of `run-small-dense.sh`; the blank in the value of --save splits it, since the array is not quoted."""


def test_a_script_of_arrays_and_a_ray_job() -> None:
    launch = read_file("run-small-dense.sh")
    assert list(launch.arguments) == DENSE
    assert launch.environment == {
        "PYTHONUNBUFFERED": "16",
        "MASTER_ADDR": "127.0.0.1",
        "PYTHONPATH": f"/opt/megatron/:{SCRIPTS}",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    }
    assert [note.line for note in launch.notes] == [13, 54]
    assert "`NCCL_NVLS_ENABLE` was left out of the environment: `if` in lines 13 to 17" in texts(launch)[0]
    assert "`WANDB_KEY` is not set" in texts(launch)[1]


def test_given_variables_replace_defaults() -> None:
    launch = read_file("run-small-dense.sh", WANDB_KEY="k", MODELS="/m", MASTER_ADDR="10.0.0.1", ROTARY_BASE="5")
    found = [*DENSE, "k"]
    for old, new in (("/data/models/small-chat", "/m/small-chat"), ("10000", "5")):
        found = [new if word == old else word for word in found]
    assert list(launch.arguments) == found
    assert launch.environment["MASTER_ADDR"] == "10.0.0.1"
    assert len(launch.notes) == 1


@needs_bash
def test_a_whole_script_gives_the_words_of_bash(tmp_path: Path) -> None:
    stubs = "pkill() { :; }; sleep() { :; }; nvidia-smi() { echo; }; grep() { echo 0; }\n"
    stubs += 'ray() { [ "$1" = job ] || return 0; while [ "$1" != -- ]; do shift; done; shift 2; python "$@"; }\n'
    script = f". {SCRIPTS / 'run-small-dense.sh'}"
    assert run_bash(stubs + script, tmp_path) == DENSE


def test_a_script_with_an_entry_script_variants_and_a_command_in_an_array() -> None:
    launch = read_file("run-hybrid.sh", MODEL_PATH="/m", CUDA_VISIBLE_DEVICES="0,1", RUN="unused")
    assert list(launch.arguments) == [
        *("--resource", '{"actor": [1, 1], "rollout": [1, 1]}', "--update-weights-interval", "1"),
        *("--hf-checkpoint", "/m", "--global-batch-size", "32", "--advantage-estimator", "grpo"),
        *("--use-kl-loss", "--kl-loss-coef", "0.001", "--custom-config-path", str(SCRIPTS.parent / "extra.yaml")),
        *("--tb-experiment-name", "hybrid-plain-$(date +%Y%m%d)"),
    ]
    assert launch.environment == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "ENTRY_MODE": "local",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "THREADS": "24",
    }
    assert [(note.line, note.text.split(" ")[0]) for note in launch.notes] == [
        (16, "`$(date"),
        (63, "`$@`"),
        (19, "entry-local.sh:"),
        (19, "entry-local.sh:"),
    ]


def test_a_variant_is_chosen_by_a_variable() -> None:
    arguments = read_file(
        "run-hybrid.sh", MODEL_PATH="/m", VARIANT="fast", ENTRY_MODE="x", RUNTIME_ENV_JSON="{}"
    ).arguments
    assert arguments[arguments.index("--update-weights-interval") + 1] == "2"
    assert "--use-kl-loss" not in arguments


def test_a_missing_variable_and_a_failed_check_are_noted_and_the_script_is_read_on() -> None:
    launch = read_file("run-hybrid.sh", VARIANT="unknown")
    assert "${MODEL_PATH}" in launch.arguments
    notes = {note.line: note.text for note in launch.notes if ":" not in note.text}
    assert notes[11] == "`MODEL_PATH` must be set."
    assert notes[26] == "The script ends here with `exit 2`; it was read on."


def test_of_several_trainings_the_first_counts() -> None:
    launch = read_file("run-sweep.sh")
    assert list(launch.arguments) == [
        *("--lr", "1e-6", "--hidden-size", "64", "--data", "a.jsonl", "b.jsonl"),
        *("--multimodal-keys", '{"image": "image"}', "--note", "it's a\ttest", "--resource", '{"actor": [1, 2]}'),
    ]
    assert launch.environment == {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1"}
    assert [note.line for note in launch.notes] == [2, 6]


COMMANDS = [
    "python train.py --x",
    "python3.11 -u /opt/slime/train.py --x",
    'python3 "${ROOT}/train_async.py" --x',
    "./train.py --x",
    "python -m relax.entrypoints.train --x",
    "$PYTHON -m relax.entrypoints.train --x",
    "relax train --x",
    "nohup .venv/bin/relax train --x &",
    "torchrun --nproc-per-node 8 train.py --x",
    "accelerate launch --num_processes 2 train.py --x",
    "srun --nodes 2 python train.py --x",
    "exec env -i A=1 python train.py --x",
    "command time python train.py --x",
    "ray job submit --address=a -- python3 train.py --x",
    "ray job submit --address a --no-wait python3 train.py --x",
    "$PYTHON -m ray.scripts.scripts job submit -- python3 train.py --x",
    "bash -c 'cd /a && python train.py --x'",
    "ray job submit -- bash -lc 'python train.py \"$0\"' --x",
    "cd /a && python train.py --x || exit 1",
    "JOB=$(ray job submit --no-wait -- python train.py --x)",
    "if ! python train.py --x; then echo failed; fi",
    "echo 'python train.py --no' > train.py; python train.py --x",
    "cp train.py old.py; python train.py --x",
    'if [[ "${BASH_SOURCE[0]}" == "${0}" ]]; then python train.py --x; fi',
]


@pytest.mark.parametrize("script", COMMANDS)
def test_a_training_command_is_found(script: str) -> None:
    assert words_of(script) == ["--x"]


def test_the_environment() -> None:
    json = """'{"env_vars": {"C": "3", "D": 4, "A": "5"}, "pip": ["x"]}'"""
    script = f"export A=1; B=2; export E; E=6\nF=7 ray job submit --runtime-env-json={json} -- env G=8 python train.py"
    assert read_launch(script).environment == {"A": "5", "E": "6", "F": "7", "C": "3", "D": "4", "G": "8"}
    assert (
        read_launch(f"export A=1\nray job submit --runtime-env-json {json} -- python train.py").environment["D"] == "4"
    )
    assert read_launch("export A=1; unset A; export B=2; declare +x B\npython train.py").environment == {}
    assert read_launch("export A=1\nenv -i B=2 python train.py").environment == {"B": "2"}
    assert read_launch("set -a; A=1; set +a; B=2\npython train.py").environment == {"A": "1"}


def test_an_environment_that_is_not_known_is_left_out() -> None:
    script = """
        export PATH=$PATH:/x PYTHONPATH=/a:$PYTHONPATH
        J="{\\"env_vars\\": {\\"A\\": \\"$(nvidia-smi -L)\\", \\"B\\": \\"2\\"}}"
        ray job submit --runtime-env-json="$J" -- python train.py
    """
    launch = read_launch(script)
    assert launch.environment == {"PYTHONPATH": "/a:", "B": "2"}
    assert [note.line for note in launch.notes] == [2, 2, 3]
    assert "`A` was left out of the environment: `$(nvidia-smi -L)` is a command" in texts(launch)[2]
    whole = read_launch('J=$(python make.py)\nray job submit --runtime-env-json="$J" -- python train.py --x')
    assert (whole.arguments, whole.environment) == (("--x",), {})
    assert "the runtime environment of `ray job submit` was left out: `$(python make.py)`" in texts(whole)[0].lower()


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_stays_as_it_is_written_and_is_noted(case: str) -> None:
    script, arguments, notes = UNKNOWN[case]
    launch = read_launch(script)
    assert list(launch.arguments) == arguments
    assert [note.line for note in launch.notes] == [line for line, _ in notes]
    for note, (_, part) in zip(launch.notes, notes, strict=True):
        assert part in note.text


def test_what_does_not_reach_the_training_is_not_noted() -> None:
    script = """
        NOW=$(date); HOSTS=$(cat hosts)
        if [ -f lock ]; then rm lock; echo "$WHO removed it"; fi
        for host in $HOSTS; do ssh $host true & done
        [ -d logs ] || mkdir logs
        python train.py --lr 1 | tee log-$NOW
    """
    assert read_launch(script).notes == ()


def test_files_are_sourced_from_the_folder_of_the_script(tmp_path: Path) -> None:
    (tmp_path / "scripts" / "models").mkdir(parents=True)
    (tmp_path / "scripts" / "models" / "a.sh").write_text(
        '. "$(dirname "${BASH_SOURCE[0]}")/b.sh"\nM=(--n "$N")\nreturn 0\nM=()\n'
    )
    (tmp_path / "scripts" / "models" / "b.sh").write_text("N=4\n")
    folder = str(tmp_path / "scripts")
    for start in (
        'D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"; source "$D/models/a.sh"',
        'D=$(dirname "$(realpath "$0")"); source $D/../scripts/models/a.sh',
        'D="$( cd "$( dirname "$0" )" >/dev/null 2>&1 && pwd )"; source ${D}/models/a.sh',
        "D=${BASH_SOURCE%/*}; . $D/models/a.sh",
        'cd "$(dirname "$0")/.."; D=$PWD/scripts; source scripts/models/a.sh',
        f"D={folder}; source models/a.sh",
        f"D={folder}; source scripts/models/a.sh",  # from the root of a repository
    ):
        launch = read_launch(f'{start}\npython train.py "${{M[@]}}" "$D"', folder=folder)
        assert launch.arguments == ("--n", "4", folder), start
        assert launch.notes == ()


def test_files_that_cannot_be_sourced_are_noted(tmp_path: Path) -> None:
    (tmp_path / "bad.sh").write_text("A=1\nif x; then\n")
    launch = read_launch(
        "source none.sh\nsource bad.sh\nsource $(x)/y.sh\npython train.py ${A[@]}", folder=str(tmp_path)
    )
    assert [note.line for note in launch.notes] == [1, 2, 3, 4]
    assert "`source none.sh` was left out: it was not found" in texts(launch)[0]
    assert (
        "`bad.sh` was left out, because it is no script: `if` has no `fi`: the script ends (line 2)" in texts(launch)[1]
    )
    assert "its place is not known" in texts(launch)[2]


def test_a_file_may_source_itself(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("source a.sh\n")
    with pytest.raises(UserError):
        read_launch("source a.sh\npython train.py", folder=str(tmp_path))


def test_another_script_is_followed_with_its_arguments_and_what_is_exported(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text('B=${B:-none}\npython train.py --a "$A" --b "$B" "$@"\n')
    launch = read_launch("export A=1; B=2\nexec bash inner.sh --lr 3\npython train.py", folder=str(tmp_path))
    assert list(launch.arguments) == ["--a", "1", "--b", "none", "--lr", "3"]
    assert launch.environment == {"A": "1"}


ERRORS = {
    "": ["starts no training", "`train.py`", "`relax train`"],
    "echo python train.py\n": ["starts no training"],
    "python tools/convert.py train.py.bak\n": ["starts no training"],
    'A=1\nB="x\nC=3\n': ["line 2", "double quote", "never closed"],
    "A='x\n": ["line 1", "single quote", "never closed"],
    "A=(\n a\n": ["line 1", "array", "never closed"],
    "\nif true; then\n  A=1\n": ["line 2", "`if` has no `fi`"],
    "for x in a; do\n  A=1\nfi\n": ["line 3", "`fi` closes nothing"],
    "A=$(echo x\n": ["line 1", "`$(`", "never closed"],
    "A=${B\n": ["line 1", "`${`", "never closed"],
    "cat <<EOF\nx\n": ["line 1", "here-document `EOF`", "never closed"],
    "f() {\n  x\n": ["line 1", "`{` has no `}`"],
    "a || || b\n": ["line 1", "cannot stand here"],
    "case x in\n a) b ;;\n": ["line 1", "`case` has no `esac`"],
    "[[ -n $A \n": ["line 1", "`[[`", "never closed"],
    "echo )\n": ["line 1", "`)` closes nothing"],
    "if [ -f x ]; then\n  python train.py\nfi\n": ["starts no training", "`if` in lines 1 to 3 was skipped"],
    "go() { python train.py; }\n": ["The function `go` in line 1 holds one, and its call was not reached"],
    "bash other.sh\n": ["Line 1 starts `other.sh`, which was not found"],
    "(" * 5000: ["script"],
}


@pytest.mark.parametrize("script", ERRORS)
def test_errors_name_the_line_or_what_was_sought(script: str) -> None:
    with pytest.raises(UserError) as caught:
        read_launch(script)
    for part in ERRORS[script]:
        assert part in str(caught.value)


def test_nothing_is_run_and_only_named_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one guarantee that a person relies on who reads a script that they do not trust."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FROM_OUTSIDE", "seen")

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(f"{arguments} was run")

    for name in ("system", "popen", "posix_spawn", "execve", "fork"):
        monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    script = """
        touch a; A=$(touch b) B=`touch c`; echo x > d; cat > e <<< y; eval "touch f"; trap 'touch g' EXIT
        bash -c 'touch h'; if touch i; then touch j; fi; ( touch k ) & touch l | tee m; : > n; exec > o
        python train.py "$A" "$B" "$FROM_OUTSIDE" *
    """
    assert read_launch(script).arguments == ("$(touch b)", "`touch c`", "", "*")
    assert list(tmp_path.iterdir()) == []
