"""Weights broadcast in a group of processes, to the real SGLang on a CPU by gloo."""

import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import load_file

from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineUnavailable
from relax_core.weights import group
from relax_core.weights.group import GroupLink
from relax_core.weights.transport import WeightsDiffer, check_equal, push_weights

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]


@pytest.fixture
def link(monkeypatch) -> GroupLink:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(group, "MEETING_SECONDS", 20.0)
    return GroupLink("gloo")


def weights(engine, number: int) -> dict[str, torch.Tensor]:
    return load_file(engine.folders[number] / "model.safetensors")


def test_every_bit_arrives_and_the_group_is_made_once(sglang_engine, link):
    url = [sglang_engine.url]
    first = push_weights(weights(sglang_engine, 1).items(), url, 101, 100_000, link=link)
    assert first.buckets > 1
    assert first.setup > 0
    check_equal(weights(sglang_engine, 1).items(), url, 100_000, link=link)
    second = push_weights(weights(sglang_engine, 0).items(), url, 102, 2**20, link=link)
    assert (second.buckets, second.setup) == (1, 0.0)
    check_equal(weights(sglang_engine, 0).items(), url)  # by shared memory: the engine has the same from both
    assert sglang_engine.engine.info().weight_version == 102
    with pytest.raises(WeightsDiffer):
        check_equal(weights(sglang_engine, 1).items(), url, link=link)


def test_types_may_be_mixed(sglang_engine, link):
    # 96 numbers of 2 bytes, then of 4: any order must arrive, also where a number cannot begin behind the one before
    mixed = {
        name: tensor.bfloat16() if "norm" in name else tensor for name, tensor in weights(sglang_engine, 1).items()
    }
    rounded = {name: tensor.float() for name, tensor in mixed.items()}
    push_weights(mixed.items(), [sglang_engine.url], 105, 2**20, link=link)
    check_equal(rounded.items(), [sglang_engine.url])


def test_a_group_that_the_engine_has_lost_is_made_anew(sglang_engine, link):
    url = [sglang_engine.url]
    push_weights(weights(sglang_engine, 0).items(), url, 110, 2**20, link=link)
    with EngineControl(url[0]) as control:
        control.ask("/destroy_weights_update_group", {"group_name": link._known[url[0]][0].name})
    with pytest.raises(EngineUnavailable, match="could not be broadcast"):
        push_weights(weights(sglang_engine, 1).items(), url, 111, 2**20, link=link)
    assert sglang_engine.engine.info().weight_version is None
    assert push_weights(weights(sglang_engine, 1).items(), url, 111, 2**20, link=link).setup > 0
    check_equal(weights(sglang_engine, 1).items(), url)
    assert sglang_engine.engine.info().weight_version == 111


def test_a_trainer_that_is_killed_in_a_broadcast_leaves_no_version_and_another_one_goes_on(sglang_engine, link):
    script = f"""
        import os, time
        from safetensors.torch import load_file
        from relax_core.weights.group import EngineGroup, GroupLink
        from relax_core.weights.transport import push_weights

        def die(self, buffer):  # the engine waits for what was to come
            time.sleep(0.5)
            os.kill(os.getpid(), 9)

        tensors = load_file({str(sglang_engine.folders[1] / "model.safetensors")!r})
        link = GroupLink("gloo")
        push_weights(tensors.items(), [{sglang_engine.url!r}], 120, 2**20, link=link)
        EngineGroup._broadcast = die
        push_weights(tensors.items(), [{sglang_engine.url!r}], 121, 2**20, link=link)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=120).returncode == -9
    assert sglang_engine.engine.info().weight_version is None
    assert push_weights(weights(sglang_engine, 0).items(), [sglang_engine.url], 121, 2**20, link=link).setup > 0
    check_equal(weights(sglang_engine, 0).items(), [sglang_engine.url], link=link)
    assert sglang_engine.engine.info().weight_version == 121


def test_an_engine_that_cannot_join_is_an_error_soon(unused_port, link):
    with (
        EngineControl(f"http://127.0.0.1:{unused_port}", retries=0) as nobody,
        pytest.raises(EngineUnavailable, match="could not be broadcast: the engine at"),
    ):
        link.ready(nobody, "default", 1, torch.device("cpu"))
