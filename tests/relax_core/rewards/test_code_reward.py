"""The reward for programs: tests of every shape, and programs that want more than to be right."""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effect_probes import rollout_table

from data.errors import UserError
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rewards import programs
from relax_core.rewards.builtin.code import code, same_output
from relax_core.rewards.messages import FunctionName, Lost, Task
from relax_core.rewards.pool import RewardPool
from relax_core.rewards.sandbox import inner
from relax_core.rewards.sandbox import run as sandbox
from relax_core.rewards.score import score_table
from relax_core.rewards.types import RewardInput

LIMIT = {"seconds": 1, "memory_mb": 256}
STREAM = {"input": "", "output": "7"}

needs_sandbox = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are made of Linux's namespaces")
pytestmark = needs_sandbox


def sample(program: str, label: Any, **metadata: Any) -> RewardInput:
    return RewardInput("s", "q", f"I think:\n```python\n{program}\n```\n", label, metadata)


def graded(program: str, label: Any, **metadata: Any) -> dict[str, Any]:
    return code(sample(program, label, **{"code": LIMIT, **metadata}), "full", 60.0)


ADD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return 3\n"
SHAPES: list[tuple[str, Any, dict[str, Any]]] = [
    ("{add}print(add(*map(int, input().split())))", {"inputs": ["1 2", "3 4"], "outputs": ["3\n", "7"]}, {}),
    (
        "{add}print(add(*map(int, input().split())))",
        [{"input": "1 2", "output": "3"}, {"input": "2 2", "output": "4"}],
        {},
    ),
    ("{add}", ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"], {}),
    ("{add}", "import math\nassert add(1, 2) == 3\nassert math.isclose(add(0.1, 0.2), 0.3)", {}),
    ("{add}", {"asserts": ["assert add(*one) == 3", "assert add(2, 2) == 4"], "setup": "one = (1, 2)"}, {}),
    ("{add}", {"test": "def check(f):\n    assert f(1, 2) == 3\n    assert f(2, 2) == 4\n", "entry_point": "add"}, {}),
    ("{add}", "def check(f):\n    for i in range(9):\n        assert f(i, i) == 2 * i\n", {"entry_point": "add"}),
    ("{add}", {"fn_name": "add", "inputs": [[1, 2], [2, 2]], "outputs": [3, 4]}, {}),
    (
        "{add}",
        [{"input": "1\n2", "output": "3", "testtype": "functional"}] * 2
        + [{"input": "2\n2", "output": "4", "testtype": "functional"}],
        {"func_name": "add"},
    ),
    ('{"fn_name": 1}', '{"fn_name": "add", "inputs": [[1, 2], [2, 2]], "outputs": ["3", "4"]}', {}),
]


@pytest.mark.parametrize(("program", "tests", "metadata"), SHAPES)
def test_tests_come_in_the_shapes_that_data_sets_have(program: str, tests: Any, metadata: dict[str, Any]) -> None:
    program = program.replace("{add}", ADD) if "{add}" in program else ADD
    right = graded(program, tests, **metadata)
    assert right["score"] == 1
    assert right["passed"] == right["tests"]
    wrong = graded(program.replace(ADD, WRONG), tests, **metadata)
    assert (wrong["score"], bool(wrong["error"])) == (0, True)
    assert graded(program, None, tests=tests, **metadata)["score"] == 1


@pytest.mark.parametrize(
    ("program", "tests"),
    [
        (
            "class Solution:\n    def add(self, a, b):\n        return a + b",
            {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]},
        ),
        ("def f(x):\n    return (x, [x])", {"fn_name": "f", "inputs": [[1]], "outputs": [[1, [1]]]}),
        ("def f(x):\n    return {x: 0.1 + 0.2}", {"fn_name": "f", "inputs": [[1]], "outputs": [{"1": 0.3}]}),
        ("def f(x):\n    yield from range(x)", ["assert f(3) == [0, 1, 2]"]),
        ("class C:\n    def __init__(self, x):\n        self.x = x\n    def twice(self):\n        return 2 * self.x",
         ["c = C(2)\nassert c.twice() == 4 and c.x == 2"]),
        ("def f(x):\n    raise ValueError('no')", ["try:\n    f(1)\n    x = 1\n"
          "except ValueError as e:\n    x = 'no' in str(e)\nassert x is True"]),
        ("from collections import Counter\ndef f(x):\n    return Counter(x)", ["assert f('aab') == {'a': 2, 'b': 1}"]),
        ("def f(*x, k=0):\n    return set(x) | {k}", ["assert f(1, 2, k=3) == {1, 2, 3}"]),
        ("def f():\n    return [None, True, 2**70, 1e300, 1j, b'x', 'é\\ud800', (1,), frozenset([1])]",
         ["assert f() == [None, True, 2**70, 1e300, 1j, b'x', 'é\\ud800', (1,), frozenset([1])]"]),
        ("def sorted(x):\n    return 5", {"test": "def check(f):\n    assert f([2, 1]) == 5", "entry_point": "sorted"}),
        ("exit() if input() == 'x' else print(1)", {"input": "x", "output": ""}),
        ("import sys\nprint(sys.stdin.read(), end='')", {"input": "a\n\nb", "output": "a\n\nb\n"}),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int' = 7\nprint(P().x)", STREAM),
    ],
)  # fmt: skip
def test_right_programs_pass(program: str, tests: Any) -> None:
    result = graded(program, tests)
    assert result["score"] == 1, result


HOSTILE = {
    "leaves before the tests": ("import sys\nsys.exit(0)", ["assert f(1) == 7"]),
    "leaves at once": ("import os\nos._exit(0)", ["assert f(1) == 7"]),
    "leaves in the call": ("import os\ndef f(x):\n    os._exit(0)", ["assert f(1) == 7"]),
    "equals everything": (
        "class A:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return A()",
        ["assert f(1) == 7"],
    ),
    "replaces what tests use": (
        "import builtins, math\nmath.isclose = lambda *a: True\nbuiltins.abs = lambda x: 0\ndef abs(x):\n    return 0\n"
        "def f(x):\n    return 100.0",
        ["import math\nassert math.isclose(f(1), 7)", "assert abs(f(1) - 7) < 1"],
    ),
    "replaces the checker": (
        "import sys\nfor m in list(sys.modules.values()):\n    for n in ('same', 'test', 'encode', 'main'):\n"
        "        if hasattr(m, n):\n            setattr(m, n, lambda *a, **k: ['i', '0x8'])\ndef f(x):\n    return 8",
        {"fn_name": "f", "inputs": [[1]], "outputs": [7]},
    ),
    "answers before it is asked": (
        "import os, struct\ndata = b'{\"test\": 0, \"ok\": true}'\n"
        "for d in range(3, 20):\n    try:\n"
        "        os.write(d, struct.pack('!I', len(data)) + data)\n    except OSError:\n        pass\n"
        "def f(x):\n    return 7",
        ["assert f(1) == 8"],
    ),
    "reports for the tests": (
        "import os\nline = b'{\"test\": 0, \"ok\": true, \"why\": \"\"}\\n'\n"
        "for d in range(20):\n    try:\n        os.write(d, line)\n"
        "    except OSError:\n        pass",
        ["assert f(1) == 7"],
    ),
    "looks for the tests": (
        "import os\ntext = ''\nfor place, _, names in os.walk('/tmp'):\n    for n in names:\n"
        "        text += open(os.path.join(place, n)).read()\ndef f(x):\n    return 7 if 'f(' + '1) ==' in text else 0",
        ["assert f(1) == 7"],
    ),
    "cannot be read": ("def f(:", ["assert f(1) == 7"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_program_passes_by_being_right_alone(kind: str) -> None:
    program, tests = HOSTILE[kind]
    result = graded(program, tests)
    assert result["score"] == 0
    assert result["passed"] == 0
    assert result["error"]


def test_share_goes_on_after_a_failure_and_after_the_programs_end() -> None:
    program = "import os\ndef f(x):\n    if x == 2:\n        os._exit(1)\n    return x if x != 3 else 0"
    tests = [f"assert f({i}) == {i}" for i in range(1, 6)]
    assert graded(program, tests) | {"error": ""} == {"score": 0, "passed": 1, "tests": 5, "error": ""}
    share = graded(program, tests, code={**LIMIT, "score": "share"})
    assert (share["score"], share["passed"], share["error"]) == (0.6, 3, "the program has ended")


def probe(lines: str) -> str:
    """A program that writes 7 when nothing of what it tries is allowed."""
    return (
        "import os, sys, socket, time\nfound = []\ndef forbid(what, *errors):\n    try:\n        what()\n"
        "    except (errors or (OSError,)):\n        return\n    found.append(1)\n" + lines + "\nprint(found or 7)"
    )


SECRET = "RELAX_TEST_SECRET"


@pytest.mark.parametrize(
    "lines",
    [
        "forbid(lambda: socket.create_connection(('127.0.0.1', PORT), 2))",
        "forbid(lambda: socket.create_connection(('192.0.2.1', 80), 2))",
        "forbid(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53)))",
        "for place in ('/', '/usr', '/etc', '/dev', '/proc', '/root', '/var/tmp'):\n"
        "    forbid(lambda: open(place + '/relax-was-here', 'w'))",
        "forbid(lambda: open('FOLDER/secret').read())\nforbid(lambda: open('/etc/passwd').read())",
        "found += [p for p in os.listdir('/proc') if p.isdigit() and int(p) > 3]",
        "forbid(lambda: open('/proc/1/environ').read())\n"
        "found += [k for k, v in os.environ.items() if k != 'LC_CTYPE']",
        "forbid(lambda: os.kill(PARENT, 9))\nforbid(lambda: os.setuid(0))\nforbid(lambda: os.chroot('/tmp'))",
        "forbid(lambda: bytearray(1 << 29), MemoryError)",
        "forbid(lambda: open('big', 'wb').write(bytes(1 << 27)))",
        "files = []\nforbid(lambda: files.extend(open('/dev/null') for _ in range(1000)))",
        "def bomb():\n    for _ in range(1000):\n        if os.fork() == 0:\n            time.sleep(100)\nforbid(bomb)",
    ],
)  # fmt: skip
def test_what_a_sandbox_forbids(lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "hidden")
    (tmp_path / "secret").write_text("hidden")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name, value in (("PORT", server.getsockname()[1]), ("FOLDER", tmp_path), ("PARENT", os.getpid())):
            lines = lines.replace(name, str(value))
        result = graded(probe(lines), STREAM)
    assert result["score"] == 1, result


@pytest.mark.parametrize(
    ("program", "error"),
    [
        ("while True:\n    print('x' * 1000)", "it wrote too much"),
        ("import sys\nwhile True:\n    sys.stderr.write('x' * 1000)", "it wrote too much"),
        ("while True:\n    pass", "it took longer than 1 s"),
        ("x = [0]\nwhile True:\n    x += x", "it ended with status 1: MemoryError"),
        ("import os\nwhile True:\n    os.fork()", "it"),
        ("import os\nos.kill(-1, 9)", "it"),
        ("import os\nos.killpg(0, 9)", "it"),
        ("x = 1\ndef f():\n    f()\nf()", "it ended with status 1: RecursionError"),
    ],
)
def test_what_never_ends_by_itself_is_ended(program: str, error: str) -> None:
    result = graded(program, STREAM)
    assert result["score"] == 0
    assert result["error"].startswith(error)
    assert left_over() == []


def left_over() -> list[str]:
    """Programs of sandboxes that run; they get a moment to be gone."""
    for _ in range(50):
        found = [
            name
            for name in os.listdir("/proc")
            if name.isdigit() and b"program.py" in _command(name) and b"-X" in _command(name)
        ]
        if not found:
            return []
        time.sleep(0.1)
    return found


def _command(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_program_ends_with_the_process_that_scores_it() -> None:
    name = FunctionName("code", settings='{"code_sandbox": "full", "reward_timeout": 60.0}')
    slow = sample("import os, time\nif os.fork():\n    os.setsid()\ntime.sleep(50)", STREAM, code={"seconds": 50})
    with RewardPool(1, 3.0) as pool:
        [result] = pool.run([Task(name, (slow,), None, None)])
        assert result == Lost("timeout", "it took longer than 3 s")
        assert left_over() == []


def test_tests_that_are_left_when_the_time_is_over_have_failed() -> None:
    slow = sample("import time\ntime.sleep(0.4)\nprint(7)", [STREAM] * 50, code={**LIMIT, "score": "share"})
    result = code(slow, "full", 3.0)
    assert 0 < result["passed"] < 20
    assert result["error"] == "no time was left" or "longer" in result["error"]


def table(samples: list[RewardInput], **options: Any) -> pa.Table:
    found = rollout_table().slice(0, len(samples))
    columns = {
        "response": [one.response for one in samples],
        "label": [json.dumps(one.label) for one in samples],
        "metadata": [json.dumps(one.metadata) for one in samples],
    }
    for name, column in columns.items():
        found = found.set_column(found.schema.get_field_index(name), found.schema.field(name), pa.array(column))
    return score_table(found, with_options(RelaxConfig(), {"rm_type": "code", **options}))


def test_it_is_a_reward_like_the_others() -> None:
    scored = table([sample("print(7)", STREAM), sample("print(8)", STREAM)])
    assert scored["reward"].to_pylist() == [1, 0]
    assert json_of(scored) == [
        {"passed": 1.0, "tests": 1.0},
        {"passed": 0.0, "tests": 1.0, "error": "wrong output"},
    ]


def json_of(scored: pa.Table) -> list[Any]:
    return [json.loads(text) for text in scored["components"].to_pylist()]


@pytest.mark.parametrize(
    ("tests", "metadata"),
    [
        (None, {}),
        (5, {}),
        ({"inputs": ["1"], "outputs": []}, {}),
        ({"inputs": []}, {}),
        ([], {}),
        ("x = 1", {}),
        ("assert f(", {}),
        ("def check(f):\n    pass", {}),
        ([{"input": "1", "output": "1", "testtype": "functional"}], {}),
        ([{"input": "1"}], {}),
        (["assert f(1)"], {"code": {"second": 1}}),
        (["assert f(1)"], {"code": {"seconds": 0}}),
        (["assert f(1)"], {"code": {"score": "some"}}),
        (["assert f(1)"], {"code": 5}),
        (["import no_such_module_here\nassert f(1)"], {}),
        (["assert f(lambda: 1)"], {}),
    ],
)
def test_tests_that_are_none_are_a_mistake_in_the_data(tests: Any, metadata: dict[str, Any]) -> None:
    if "no_such" in str(tests):
        tests = {"asserts": tests, "setup": "import no_such_module_here"}
    with pytest.raises(UserError, match="ample s") as error:
        graded("def f(x):\n    return x", tests, **metadata)
    assert error.value.fix


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("```python\na\n```\nthen\n```py\nb\n```\n", "b\n"),
        ("```python\na\n```\nIt prints\n```text\n7\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("~~~python\na\n```\n~~~", "a\n```\n"),
        ("````python\na = '''\n```\n'''\n````", "a = '''\n```\n'''\n"),
        ("```python\na\nb", "a\nb"),
        ("```python\nfirst\n```python\nsecond\n```", "second\n"),
        ("```bash\nls\n```", None),
        ("print(7)", None),
        ("", None),
    ],
)
def test_the_program_is_the_last_block_of_python(response: str, program: str | None) -> None:
    given = RewardInput("s", "", response)
    assert programs.program_of(given, programs.settings_of(given)) == program
    if program is None:
        assert code(RewardInput("s", "", response, STREAM), "full", 60.0)["error"] == "the response has no program"


def test_the_row_may_bring_the_program_or_what_stands_round_it() -> None:
    assert graded("", STREAM, code={**LIMIT, "program": "print(7)"})["score"] == 1
    assert graded("print(x)", STREAM, code={**LIMIT, "before": "x = 7\n"})["score"] == 1
    assert graded("x = 7", STREAM, code={**LIMIT, "after": "print(x)\n"})["score"] == 1


@pytest.mark.parametrize(
    ("written", "expected", "same"),
    [
        ("7\n", "7", True),
        ("7  \n8\n\n", "7\n8", True),
        ("7\n\n8", "7\n8", False),
        ("0.30000000000000004", "0.3", True),
        ("0.5 1", "0.50 1", True),
        ("8", "7.0", False),
        ("7.0", "7", False),  # whole numbers are not written so
        ("nan", "0.0", False),
        ("a b", "a  b", True),
        ("A", "a", False),
        ("", "", True),
    ],
)
def test_output_is_compared_line_by_line(written: str, expected: str, same: bool) -> None:
    assert same_output(written, expected) is same


def test_without_a_sandbox_no_program_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher.py"
    text = sandbox.LAUNCHER.read_text()
    launcher.write_text(text.replace("_libc.unshare(", "_refuse(").replace("class NotIso", f"{REFUSE}class NotIso"))
    monkeypatch.setattr(sandbox, "LAUNCHER", launcher)
    with pytest.raises(UserError, match=r"sample s was not run, since this machine gives no sandbox: .*--code-sandbox"):
        graded("print(7)", STREAM)
    with pytest.raises(UserError, match="no sandbox"):
        graded("def f(): return 7", ["assert f() == 7"])


def test_a_sandbox_that_cannot_be_made_names_the_kernels_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where no further user namespaces are allowed."""
    launcher = tmp_path / "launcher.py"
    text = sandbox.LAUNCHER.read_text().replace("_libc.unshare(", "_refuse(")
    launcher.write_text(text.replace("class NotIso", f"{REFUSE.replace('(1)', '(28)')}class NotIso"))
    monkeypatch.setattr(sandbox, "LAUNCHER", launcher)
    most = Path("/proc/sys/user/max_user_namespaces").read_text().strip()
    with pytest.raises(UserError) as caught:
        graded("print(7)", STREAM)
    assert f"unshare: No space left on device (user.max_user_namespaces is {most})" in caught.value.problem
    assert "--code-sandbox limits" in caught.value.fix


REFUSE = "def _refuse(flags):\n    ctypes.set_errno(1)\n    return -1\n\n\n"


def test_limits_alone_are_for_who_says_so(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    if os.geteuid() == 0 and not _everybody_may_run(sys.executable):
        if not _everybody_may_run("/usr/bin/python3"):
            pytest.skip("no interpreter that another user may run")
        monkeypatch.setattr(sandbox.sys, "executable", "/usr/bin/python3")
    for program, tests in (("print(7)", STREAM), ("def f(): return 7", ["assert f() == 7"])):

        def limited(text: str, tests: Any = tests) -> Any:
            return code(sample(text, tests, code=LIMIT), "limits", 60.0)

        assert limited(program)["score"] == 1
        assert limited("x = [0]\nwhile True:\n    x += x")["score"] == 0
    assert limited("import os, time\nif os.fork():\n    os.setsid()\n    time.sleep(50)\ntime.sleep(50)")["score"] == 0
    assert left_over() == []
    assert "with network and files" in caplog.text or os.environ.get("PYTEST_XDIST_WORKER")


def _everybody_may_run(path: str) -> bool:
    real = Path(os.path.realpath(path))
    return real.exists() and all(place.stat().st_mode & 0o001 for place in [real, *real.parents])


def test_values_cross_as_they_are() -> None:
    values = [None, True, 0, -(2**200), 1.5, float("inf"), "é\ud800", b"\0", bytearray(b"a"), (1, [2]), {1: {2}}]
    for value in values:
        assert inner.decode(inner.encode(value), None) == value
    with pytest.raises(inner.UnsupportedError):
        inner.encode(lambda: 1)


def test_tests_of_texts_are_split_at_their_assertions() -> None:
    tests = programs.tests_of(RewardInput("s", "", "", "import math\nassert f(1) == 2\nassert f(2) == 3\n"))
    assert (tests.setup, tests.asserts) == ("import math", ("assert f(1) == 2", "assert f(2) == 3"))
