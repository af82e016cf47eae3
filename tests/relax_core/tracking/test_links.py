"""Links to files of a run."""

import pytest

from relax_core.tracking.links import place

SERVER = "http://127.0.0.1:4200"


@pytest.mark.parametrize("folder", ["/runs/one", "s3://runs/one"])
def test_without_a_server_only_an_address_of_the_web_is_a_link(folder: str) -> None:
    assert place(folder, "a.parquet", folder) == "`a.parquet`"
    assert place("https://runs/one/", "a.parquet") == "[a.parquet](https://runs/one/a.parquet)"


def test_a_server_gives_files_of_the_run_and_no_others() -> None:
    found = place("/my runs/one/steps/000003", "rollout.parquet", "/my runs/one", SERVER)
    file = f"{SERVER}/relax/files?run=%2Fmy%20runs%2Fone&file=steps/000003/rollout.parquet"
    assert found == f"[rollout.parquet]({file})"
    assert place("/my runs/one-b", "rollout.parquet", "/my runs/one", SERVER) == "`rollout.parquet`"
    assert place("", "/my runs/one", "/my runs/one", SERVER) == "`/my runs/one`"
