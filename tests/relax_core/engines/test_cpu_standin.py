"""The CPU stand-in's own computations, and that nothing else is touched."""

import subprocess
import sys
import textwrap
import types

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from relax_core.engines.cpu import kernels, memory, processes, sampling
from relax_core.engines.cpu.attention import attend
from relax_core.engines.cpu.standin import _AfterImport


def test_batched_decode_is_attention_sequence_by_sequence():
    torch.manual_seed(0)
    lengths, heads, kv_heads, size = [1, 7, 4], 6, 2, 8
    slots = torch.randperm(39)[: sum(lengths)]
    k_cache, v_cache = torch.randn(40, kv_heads, size), torch.randn(40, kv_heads, size)
    k_cache[39] = v_cache[39] = float("nan")  # nobody's slot
    table = torch.full((5, 10), 39, dtype=torch.int32)
    rows, query = torch.tensor([3, 0, 4]), torch.randn(3, heads, size)
    expected, start = [], 0
    for i, length in enumerate(lengths):
        own = slots[start : start + length]
        table[rows[i], :length] = own.to(torch.int32)
        keys, values = k_cache[own].transpose(0, 1), v_cache[own].transpose(0, 1)
        one = query[i].unsqueeze(1)
        expected.append(scaled_dot_product_attention(one[None], keys[None], values[None], enable_gqa=True)[0, :, 0])
        start += length
    got = attend(query, k_cache, v_cache, table, rows, torch.tensor(lengths), scaling=None)
    torch.testing.assert_close(got, torch.stack(expected), atol=1e-6, rtol=1e-5)


def test_draws_follow_the_distribution():
    # 200000 draws of p = (0.1, 0, 0.6, 0.3): standard deviation of a share below 0.0011
    rows = 200_000
    weights = torch.tensor([0.1, 0.0, 0.6, 0.3]).expand(rows, 4)
    drawn = sampling.draw(weights, torch.arange(rows), torch.zeros(rows, dtype=torch.int64)).view(-1)
    shares = torch.bincount(drawn, minlength=4) / rows
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.0, 0.6, 0.3]), atol=0.006, rtol=0)
    same_seed = sampling.draw(weights, torch.full((rows,), 7), torch.arange(rows)).view(-1)
    torch.testing.assert_close(
        torch.bincount(same_seed, minlength=4) / rows, torch.tensor([0.1, 0.0, 0.6, 0.3]), atol=0.006, rtol=0
    )


def test_a_draw_depends_on_its_own_row_only():
    torch.manual_seed(0)
    weights = torch.rand(6, 50)
    seeds, positions = torch.tensor([3, -1, 2**62, 0, 5, 3]), torch.tensor([0, 1, 2, 3, 4, 5])
    together = sampling.draw(weights, seeds, positions)
    alone = [sampling.draw(weights[i : i + 1], seeds[i : i + 1], positions[i : i + 1]) for i in range(6)]
    assert torch.equal(together, torch.cat(alone))


def test_weights_need_not_sum_to_one_and_zero_is_never_drawn():
    weights = torch.tensor([0.0, 1e-30, 0.0]).expand(1000, 3)
    drawn = sampling.draw(weights, torch.arange(1000), torch.arange(1000))
    assert drawn.unique().tolist() == [1]


def test_slots_are_written_to_their_rows():
    table = torch.zeros(3, 5, dtype=torch.int32)
    kernels.assign_req_to_token_pool_cpu(
        torch.tensor([2, 0]), table, torch.tensor([1, 0]), torch.tensor([3, 2]), torch.tensor([7, 8, 9, 4]), 5
    )
    assert table.tolist() == [[9, 4, 0, 0, 0], [0, 0, 0, 0, 0], [0, 7, 8, 0, 0]]


def test_a_kernel_without_stand_in_raises_by_name():
    with pytest.raises(RuntimeError, match=r"sgl_kernel\.fancy_matmul"):
        kernels.fancy_matmul(1)


def test_a_change_is_made_when_the_module_is_imported_and_must_fit(tmp_path, monkeypatch):
    (tmp_path / "changed_module.py").write_text("value = 1")
    (tmp_path / "moved_module.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def change(module: types.ModuleType) -> None:
        sampling.replace(module, "value", 2)

    finder = _AfterImport(dict.fromkeys(("changed_module", "moved_module"), change))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import changed_module

    assert changed_module.value == 2
    with pytest.raises(ImportError, match="does not fit this version of SGLang: moved_module"):
        import moved_module  # noqa: F401


def test_importing_the_engine_package_imports_neither_torch_nor_sglang():
    code = (
        "import sys, relax_core.engines.actor, relax_core.engines.client, relax_core.engines.serve;"
        "print(sorted(m for m in ('torch', 'sglang', 'sgl_kernel', 'transformers', 'ray') if m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_forgetting_the_cache_collects_no_garbage_and_another_sglang_is_noticed():
    platform = types.ModuleType("platform")
    with pytest.raises(AttributeError, match="CpuDeviceMixin"):
        memory.no_collection(platform)
    platform.CpuDeviceMixin = type("CpuDeviceMixin", (), {"empty_cache": lambda self: pytest.fail("collected")})
    memory.no_collection(platform)
    assert platform.CpuDeviceMixin().empty_cache() is None


def test_processes_are_copies_of_the_server_and_theirs_are_new_ones():
    code = """
        import multiprocessing, threading, types
        from relax_core.engines.cpu import processes
        engine = types.ModuleType("engine")
        engine.mp = multiprocessing
        processes.copy_server(engine)
        engine.mp.set_start_method("spawn", force=True)
        here, there = engine.mp.Pipe()

        def tell():  # not pickled
            there.send([multiprocessing.get_start_method(), [each.name for each in threading.enumerate()][1:]])

        child = engine.mp.Process(target=tell)
        child.start()
        print(here.recv())
        child.join()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout == "['spawn', ['end-with-parent']]\n"
    with pytest.raises(AttributeError, match="mp"):
        processes.copy_server(types.ModuleType("another SGLang"))
