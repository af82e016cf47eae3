"""Keys of artefacts."""

from tasks.keys import artefact_key


def test_a_key_has_only_what_prefect_allows() -> None:
    assert artefact_key("My_Run.é-1a2b3c4d", "step") == "my-run---1a2b3c4d-step"
