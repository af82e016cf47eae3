import pytest

from data.errors import UserError
from relax_core.config.foreign import FOREIGN, RENAMED
from relax_core.config.options import OPTIONS, all_options
from relax_core.config.parser import flags, parse_arguments, read_config


def test_no_foreign_flag_is_one_of_our_own() -> None:
    own = {option.flag for option in all_options().values()}
    assert not own & set(FOREIGN)
    assert set(RENAMED.values()) <= set(all_options())
    assert all(flags()[flag][0].name == name for flag, name in RENAMED.items())


@pytest.mark.parametrize(
    ("argv", "resource"),
    [
        (["--actor-num-nodes", "2", "--actor-num-gpus-per-node", "8"], {"actor": (1, 16), "rollout": (1, 1)}),
        (["--actor-num-gpus-per-node", "4", "--rollout-num-gpus", "2"], {"actor": (1, 4), "rollout": (1, 2)}),
        (["--actor-num-gpus-per-node", "4", "--colocate"], {"actor": (1, 4), "rollout": (1, 4)}),
        # slime's nodes have 8 devices where nobody says otherwise, and a critic's those of the actor's
        (["--actor-num-nodes", "2", "--colocate"], {"actor": (1, 16), "rollout": (1, 16)}),
        (
            ["--actor-num-gpus-per-node", "4", "--critic-num-nodes", "2", "--rollout-num-gpus", "4"],
            {"actor": (1, 4), "critic": (1, 8), "rollout": (1, 4)},
        ),
    ],
)
def test_slimes_devices_become_the_resource(argv: list[str], resource: dict[str, tuple[int, int]]) -> None:
    config, sources, notes = read_config(argv, {})
    assert config.cluster.resource == resource
    assert sources["resource"] == "command line"
    assert all("is read as a part of --resource" in str(note) for note in notes)


def test_the_resource_wins_and_that_is_told() -> None:
    argv = ["--rollout-num-gpus", "2", "--resource", '{"actor":[1,1],"rollout":[1,1]}']
    config, _, [note] = read_config(argv, {})
    assert config.cluster.resource["rollout"] == (1, 1)
    assert "has no effect beside --resource" in str(note)


def test_what_has_no_counterpart_is_told() -> None:
    _, _, notes = read_config(["--use-wandb", "--wandb-key", "abc"], {})
    assert [note.severity for note in notes] == ["warning", "warning"]
    assert "abc" not in str(notes[1])  # a secret
    with pytest.raises(UserError, match="--prefill-num-servers 2: is not supported"):
        read_config(["--prefill-num-servers", "2"], {})


@pytest.mark.parametrize("argv", [["--rollout-num-gpus", "x"], ["--rollout-num-gpus"], ["--use-wandb", "x"]])
def test_wrong_words_behind_a_foreign_flag_are_errors(argv: list[str]) -> None:
    with pytest.raises(UserError, match=argv[0]):
        parse_arguments(argv)


def test_megatrons_underscores_and_older_names_of_sglang() -> None:
    assert parse_arguments(["--sglang-cuda-graph-max-bs", "8"]) == {"sglang_cuda_graph_max_bs_decode": 8}
    assert "override_opt_param_scheduler" in OPTIONS
